//! Settings of images: pulls, credential provider plugins, and the verification of pull
//! credentials.

use kubelet_garbage_collector::ImageGcOptions;
use kubelet_image::{
    ImageOptions,
    credentials::plugin::config::{
        self as provider_config, CredentialProvider, ProviderConfigError,
    },
    pull_records::policy::{AllowedImages, VerificationPolicy},
};

use super::{
    faults::Faults,
    flags::Flags,
    kubelet_configuration::KubeletConfiguration,
    values::{absolute, at_least_zero, span},
};

/// The image options of a validated configuration.
pub(super) fn image_options(
    config: &KubeletConfiguration,
    flags: &Flags,
) -> Result<ImageOptions, ProviderConfigError> {
    Ok(ImageOptions {
        serialize_pulls: config.serialize_image_pulls.unwrap_or(true),
        max_parallel_pulls: config
            .max_parallel_image_pulls
            .and_then(|pulls| u32::try_from(pulls).ok()),
        registry_qps: at_least_zero(config.registry_pull_qps.unwrap_or_default()),
        registry_burst: at_least_zero(config.registry_burst),
        credential_providers: credential_providers(flags)?,
        verification_policy: verification_policy(config),
    })
}

/// The options of image garbage collection of a validated configuration.
pub(super) fn image_gc_options(config: &KubeletConfiguration) -> ImageGcOptions {
    let default = ImageGcOptions::default();
    let percent = |given: Option<i32>, default| {
        let given = given.and_then(|percent| u8::try_from(percent).ok());
        given.unwrap_or(default)
    };
    ImageGcOptions {
        high_threshold_percent: percent(
            config.image_gc_high_threshold_percent,
            default.high_threshold_percent,
        ),
        low_threshold_percent: percent(
            config.image_gc_low_threshold_percent,
            default.low_threshold_percent,
        ),
        minimum_age: span(config.image_minimum_gc_age),
        maximum_age: span(config.image_maximum_gc_age),
    }
}

/// The plugins configured by flags.
fn credential_providers(flags: &Flags) -> Result<Vec<CredentialProvider>, ProviderConfigError> {
    const CONFIG: &str = "--image-credential-provider-config";
    const BIN_DIR: &str = "--image-credential-provider-bin-dir";
    let flag = |given, missing| Err(ProviderConfigError::Flag { given, missing });
    match (
        &flags.image_credential_provider_config,
        &flags.image_credential_provider_bin_dir,
    ) {
        (None, None) => Ok(Vec::new()),
        (Some(config), Some(bin_dir)) => provider_config::load(config, &absolute(bin_dir)),
        (Some(_), None) => flag(CONFIG, BIN_DIR),
        (None, Some(_)) => flag(BIN_DIR, CONFIG),
    }
}

/// The verification policy of a validated configuration.
fn verification_policy(config: &KubeletConfiguration) -> VerificationPolicy {
    match config.image_pull_credentials_verification_policy.as_str() {
        // Empty if the feature gate is off.
        "" | "NeverVerify" => VerificationPolicy::NeverVerify,
        "NeverVerifyAllowlistedImages" => VerificationPolicy::NeverVerifyAllowlistedImages(
            config
                .preloaded_images_verification_allowlist
                .iter()
                .filter_map(|pattern| AllowedImages::parse(pattern).ok())
                .collect(),
        ),
        "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
        _ => VerificationPolicy::NeverVerifyPreloadedImages,
    }
}

/// Validates `preloadedImagesVerificationAllowlist`.
pub(super) fn validate_allowlist(c: &KubeletConfiguration, faults: &mut Faults) {
    let allowlist = "preloadedImagesVerificationAllowlist";
    let policy = &c.image_pull_credentials_verification_policy;
    if !c.preloaded_images_verification_allowlist.is_empty()
        && policy != "NeverVerifyAllowlistedImages"
    {
        faults.add(
            allowlist,
            format_args!("{:?}", c.preloaded_images_verification_allowlist),
            "must not be set unless imagePullCredentialsVerificationPolicy is \
             \"NeverVerifyAllowlistedImages\"",
        );
    }
    for (index, pattern) in c.preloaded_images_verification_allowlist.iter().enumerate() {
        if let Err(rule) = AllowedImages::parse(pattern) {
            let field = format!("{allowlist}[{index}]");
            faults.add(&field, format_args!("{pattern:?}"), rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{
        cli::{Command, parse},
        config::{settings::Settings, settings_error::SettingsError},
    };

    fn flags(args: &[&str]) -> Flags {
        match parse(["kubelet", "--hostname-override=node"].iter().chain(args)).unwrap() {
            Command::Run(flags) => *flags,
            other => panic!("not a run: {other:?}"),
        }
    }

    fn load(body: &str) -> Result<Settings, SettingsError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        fs::write(&path, format!("{head}{body}")).unwrap();
        Settings::load(&flags(&[&format!("--config={}", path.display())]))
    }

    #[test]
    fn credential_providers_need_both_flags_and_a_valid_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("providers.yaml");
        fs::write(
            &path,
            "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
             - {name: sh, matchImages: [a.example], defaultCacheDuration: 1m,\n   \
             apiVersion: credentialprovider.kubelet.k8s.io/v1}\n",
        )
        .unwrap();
        let config = format!("--image-credential-provider-config={}", path.display());
        let bin_dir = "--image-credential-provider-bin-dir=/bin";
        let settings = Settings::load(&flags(&[&config, bin_dir])).unwrap();
        let providers = settings.options.runtime.image.credential_providers;
        assert_eq!(providers[0].program, Path::new("/bin/sh"));
        for (args, fault) in [
            (
                &[config.as_str()][..],
                "config requires --image-credential-provider-bin-dir",
            ),
            (
                &[bin_dir],
                "bin-dir requires --image-credential-provider-config",
            ),
        ] {
            let error = Settings::load(&flags(args)).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
    }

    #[test]
    fn images_that_need_no_credentials_are_listed_by_policy() {
        let list = "preloadedImagesVerificationAllowlist: [reg.example/*]\n";
        let policy = "imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\n";
        let settings = load(&format!("{list}{policy}")).unwrap();
        assert_eq!(
            settings.options.runtime.image.verification_policy,
            VerificationPolicy::NeverVerifyAllowlistedImages(vec![AllowedImages::Below(
                "reg.example/".to_owned()
            )])
        );
        let error = load(list).unwrap_err().to_string();
        assert!(error.contains("must not be set unless"), "{error}");
        let tagged = format!("preloadedImagesVerificationAllowlist: [\"a:1\"]\n{policy}");
        let error = load(&tagged).unwrap_err().to_string();
        assert!(
            error.contains("preloadedImagesVerificationAllowlist[0]: invalid value \"a:1\""),
            "{error}"
        );
    }
}
