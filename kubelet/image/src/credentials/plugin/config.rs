//! `CredentialProviderConfig` of `kubelet.config.k8s.io`: the plugins and the images that they
//! serve.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use go_duration::GoDuration;
use kubelet_pod_spec::{
    field::FieldError,
    yaml::{self, SyntaxError},
};

use super::config_file::{ConfigFile, Entry, validate};

const KIND: &str = "CredentialProviderConfig";
const CONFIG_API_VERSIONS: &[&str] = &[
    "kubelet.config.k8s.io/v1",
    "kubelet.config.k8s.io/v1alpha1",
    "kubelet.config.k8s.io/v1beta1",
];

/// A configured plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialProvider {
    /// Its name, which is also the file name of its executable.
    pub name: String,
    /// Path of the executable.
    pub program: PathBuf,
    /// Images that the plugin serves, as URLs with globs.
    pub match_images: Vec<String>,
    /// Cache duration of responses that do not set one.
    pub default_cache_duration: Duration,
    /// API version of requests and responses.
    pub api_version: String,
    /// Arguments of the executable.
    pub args: Vec<String>,
    /// Environment variables in addition to the kubelet's own.
    pub env: Vec<(String, String)>,
    /// Set if the plugin receives service account tokens of pods.
    pub token_attributes: Option<TokenAttributes>,
}

/// What a plugin receives about service accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenAttributes {
    /// Audience of the tokens.
    pub audience: String,
    /// What a cached response is valid for.
    pub cache_type: TokenCacheType,
    /// Whether the plugin is skipped for pods without a service account.
    pub require_service_account: bool,
    /// Annotations that the service account must have, or the plugin is skipped.
    pub required_annotations: Vec<String>,
    /// Annotations that are sent if the service account has them.
    pub optional_annotations: Vec<String>,
}

/// What a cached response to a request with a token is valid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCacheType {
    /// Only the token that was sent.
    Token,
    /// The service account.
    ServiceAccount,
}

/// Why the plugins cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ProviderConfigError {
    /// Only one of the two required flags is set.
    #[error("{given} requires {missing}")]
    Flag {
        /// The flag that is set.
        given: &'static str,
        /// The flag that is missing.
        missing: &'static str,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {role} {}: {source}", path.display())]
    Read {
        /// The role of the file or directory.
        role: &'static str,
        /// Its path.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A configuration directory contains no configuration files.
    #[error("no configuration files found in directory {path:?}: they end in .json, .yaml or .yml")]
    Empty {
        /// The directory.
        path: PathBuf,
    },
    /// A file is not YAML, or has unknown fields.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The position and the error.
        source: SyntaxError,
    },
    /// A file has another API version or kind.
    #[error("{}: {field} is {found:?}; it must be {}", path.display(), expected.join(" or "))]
    Kind {
        /// The file.
        path: PathBuf,
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// The value in the file.
        found: String,
        /// The supported values.
        expected: &'static [&'static str],
    },
    /// Fields have invalid values.
    #[error("invalid credential provider configuration {}: {}", path.display(), listed(faults))]
    Invalid {
        /// The file or directory.
        path: PathBuf,
        /// The invalid fields, with their values and what is allowed.
        faults: Vec<FieldError>,
    },
    /// The executable of a plugin is missing or not executable.
    #[error("plugin binary {} is not an executable file", path.display())]
    Program {
        /// The expected path.
        path: PathBuf,
    },
}

fn listed(faults: &[FieldError]) -> String {
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}

/// Loads the plugins from a file, or from the `.json`, `.yaml` and `.yml` files of a directory in
/// the order of their names. The executables are in `bin_dir`.
///
/// # Errors
/// The file and field at fault, or the missing executable.
pub fn load(path: &Path, bin_dir: &Path) -> Result<Vec<CredentialProvider>, ProviderConfigError> {
    fs::read_dir(bin_dir).map_err(|source| ProviderConfigError::Read {
        role: "the directory of credential provider plugins",
        path: bin_dir.to_owned(),
        source,
    })?;
    let mut entries = Vec::new();
    for file in files(path)? {
        entries.extend(read(&file)?.providers);
    }
    let faults = validate(&entries);
    if !faults.is_empty() {
        return Err(ProviderConfigError::Invalid {
            path: path.to_owned(),
            faults,
        });
    }
    entries
        .into_iter()
        .map(|entry| {
            let program = bin_dir.join(&entry.name);
            let is_program = fs::metadata(&program)
                .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
            if is_program {
                Ok(provider(entry, program))
            } else {
                Err(ProviderConfigError::Program { path: program })
            }
        })
        .collect()
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ProviderConfigError> {
    let fault = |source| ProviderConfigError::Read {
        role: "the credential provider configuration",
        path: path.to_owned(),
        source,
    };
    if !fs::metadata(path).map_err(fault)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let file = entry.path();
        let extension = file.extension().and_then(|e| e.to_str());
        if matches!(extension, Some("json" | "yaml" | "yml"))
            && !entry.file_type().map_err(fault)?.is_dir()
        {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(ProviderConfigError::Empty {
            path: path.to_owned(),
        });
    }
    files.sort_unstable();
    Ok(files)
}

fn read(path: &Path) -> Result<ConfigFile, ProviderConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ProviderConfigError::Read {
        role: "the credential provider configuration",
        path: path.to_owned(),
        source,
    })?;
    let file: ConfigFile = yaml::from_str(&text).map_err(|source| ProviderConfigError::Parse {
        path: path.to_owned(),
        source,
    })?;
    let kinds: [(_, _, &'static [&'static str]); 2] = [
        ("apiVersion", &file.api_version, CONFIG_API_VERSIONS),
        ("kind", &file.kind, &[KIND]),
    ];
    for (field, found, expected) in kinds {
        if !expected.contains(&found.as_str()) {
            return Err(ProviderConfigError::Kind {
                path: path.to_owned(),
                field,
                found: found.clone(),
                expected,
            });
        }
    }
    Ok(file)
}

/// The plugin of a validated entry.
fn provider(entry: Entry, program: PathBuf) -> CredentialProvider {
    let token_attributes = entry.token_attributes.map(|token| TokenAttributes {
        audience: token.service_account_token_audience,
        cache_type: match token.cache_type.as_str() {
            "Token" => TokenCacheType::Token,
            _ => TokenCacheType::ServiceAccount,
        },
        require_service_account: token.require_service_account.unwrap_or_default(),
        required_annotations: token.required_service_account_annotation_keys,
        optional_annotations: token.optional_service_account_annotation_keys,
    });
    CredentialProvider {
        name: entry.name,
        program,
        match_images: entry.match_images,
        default_cache_duration: entry
            .default_cache_duration
            .and_then(GoDuration::to_std)
            .unwrap_or_default(),
        api_version: entry.api_version,
        args: entry.args.unwrap_or_default(),
        env: entry
            .env
            .unwrap_or_default()
            .into_iter()
            .map(|variable| (variable.name, variable.value))
            .collect(),
        token_attributes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::plugin::API_VERSIONS;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n";
    const PROVIDER: &str = "\
- name: sh
  matchImages: ['*.example']
  defaultCacheDuration: 1h
  apiVersion: credentialprovider.kubelet.k8s.io/v1
";

    fn load_text(text: &str) -> Result<Vec<CredentialProvider>, ProviderConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        fs::write(&file, text).unwrap();
        load(&file, Path::new("/bin"))
    }

    fn error(text: &str) -> String {
        load_text(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let token = "  args: [a, b]
  env: [{name: X, value: 'y'}]
  tokenAttributes:
    serviceAccountTokenAudience: aud
    cacheType: Token
    requireServiceAccount: false
    optionalServiceAccountAnnotationKeys: [example.com/Role]
";
        let providers = load_text(&format!("{HEAD}providers:\n{PROVIDER}{token}")).unwrap();
        assert_eq!(
            providers,
            [CredentialProvider {
                name: "sh".to_owned(),
                program: PathBuf::from("/bin/sh"),
                match_images: vec!["*.example".to_owned()],
                default_cache_duration: Duration::from_secs(3600),
                api_version: API_VERSIONS[0].to_owned(),
                args: vec!["a".to_owned(), "b".to_owned()],
                env: vec![("X".to_owned(), "y".to_owned())],
                token_attributes: Some(TokenAttributes {
                    audience: "aud".to_owned(),
                    cache_type: TokenCacheType::Token,
                    require_service_account: false,
                    required_annotations: Vec::new(),
                    optional_annotations: vec!["example.com/Role".to_owned()],
                }),
            }]
        );
    }

    #[test]
    fn faults_name_the_field() {
        for (body, fault) in [
            (
                "providers: []\n",
                "providers: Required value: at least 1 item",
            ),
            (
                "providers:\n- name: a/b\n",
                "providers.name: Invalid value: \"a/b\": provider name cannot contain '/'",
            ),
            (
                "providers:\n- name: sh\n",
                "providers.matchImages: Required value",
            ),
            (
                "providers:\n- name: sh\n  apiVersion: v1\n",
                "providers.apiVersion: Unsupported value: \"v1\": supported values: ",
            ),
            (
                "providers:\n- name: sh\n  defaultCacheDuration: -1s\n",
                "providers.defaultCacheDuration: Invalid value: \"-1s\"",
            ),
            (
                "providers:\n- name: sh\n  matchImages: ['a:b']\n",
                "providers.matchImages: Invalid value: \"a:b\": match image is invalid: invalid port",
            ),
            (
                "providers:\n- name: sh\n  tokenAttributes: {}\n",
                "providers.tokenAttributes.cacheType: Required value",
            ),
            (
                "providers:\n- name: sh\n  env: [{name: X, value: y}]\n",
                "providers[0].env[0].value: invalid type: boolean `true`, expected a string",
            ),
            (
                "providers:\n- name: sh\n  matchimages: []\n",
                "did you mean \"matchImages\"",
            ),
        ] {
            let message = error(&format!("{HEAD}{body}"));
            assert!(message.contains(fault), "{fault:?} is not in {message:?}");
        }
        let twice = error(&format!("{HEAD}providers:\n{PROVIDER}{PROVIDER}"));
        assert!(
            twice.contains("providers.name: Duplicate value: \"sh\""),
            "{twice}"
        );
        let kind = error("apiVersion: v1\nkind: CredentialProviderConfig\n");
        assert!(kind.contains("apiVersion is \"v1\"; it must be"), "{kind}");
        let absent = PROVIDER.replace("name: sh", "name: absent-plugin");
        let absent = error(&format!("{HEAD}providers:\n{absent}"));
        assert!(absent.contains("/bin/absent-plugin"), "{absent}");
    }

    #[test]
    fn the_files_of_a_directory_are_one_configuration() {
        let dir = tempfile::tempdir().unwrap();
        for (file, name) in [("b.yml", "cat"), ("a.yaml", "sh"), ("c.conf", "ls")] {
            let text = PROVIDER.replace("sh", name);
            let text = format!("{HEAD}providers:\n{text}");
            fs::write(dir.path().join(file), text).unwrap();
        }
        let providers = load(dir.path(), Path::new("/bin")).unwrap();
        let names: Vec<_> = providers.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["sh", "cat"]);
        let empty = tempfile::tempdir().unwrap();
        let error = load(empty.path(), Path::new("/bin")).unwrap_err();
        assert!(error.to_string().contains("no configuration files"));
    }
}
