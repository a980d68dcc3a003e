//! Token reviews, access reviews, and reviews of the caller itself.

use serde_json::{Value, json};

use super::{
    Server,
    errors::ApiError,
    policy::Attributes,
    request::{Caller, Target},
    strategy::text,
};

impl Server {
    /// Answers a review.
    pub(super) fn review(
        &self,
        target: &Target,
        mut review: Value,
        caller: &Caller,
    ) -> Result<Value, ApiError> {
        let status = match target.resource.kind {
            "TokenReview" => self.review_token(&review),
            "SubjectAccessReview" => {
                let subject = Caller {
                    user: text(&review, "/spec/user").to_owned(),
                    groups: strings(&review["spec"]["groups"]),
                    uid: text(&review, "/spec/uid").to_owned(),
                    ..Caller::default()
                };
                self.review_access(&review, &subject)
            }
            "SelfSubjectAccessReview" => self.review_access(&review, caller),
            "SelfSubjectReview" => json!({"userInfo": user_info(caller)}),
            _ => return Err(ApiError::method_not_allowed()),
        };
        review["apiVersion"] = json!(target.resource.api_version());
        review["kind"] = json!(target.resource.kind);
        if !review["metadata"].is_object() {
            review["metadata"] = json!({});
        }
        review["status"] = status;
        Ok(review)
    }

    fn review_token(&self, review: &Value) -> Value {
        let audiences = strings(&review["spec"]["audiences"]);
        match self.check_token(text(review, "/spec/token"), &audiences) {
            Some((caller, audiences)) => json!({
                "authenticated": true, "user": user_info(&caller), "audiences": audiences,
            }),
            None => json!({"user": {}, "error": "invalid bearer token"}),
        }
    }

    fn review_access(&self, review: &Value, subject: &Caller) -> Value {
        let spec = &review["spec"];
        let resource = &spec["resourceAttributes"];
        let attributes = if resource.is_object() {
            let part = |name: &str| resource[name].as_str().unwrap_or_default().to_owned();
            Attributes {
                verb: part("verb"),
                group: part("group"),
                resource: part("resource"),
                subresource: part("subresource"),
                namespace: part("namespace"),
                name: part("name"),
                path: String::new(),
            }
        } else {
            Attributes {
                verb: text(spec, "/nonResourceAttributes/verb").to_owned(),
                path: text(spec, "/nonResourceAttributes/path").to_owned(),
                ..Attributes::default()
            }
        };
        let policy = self.settings.lock().policy.clone();
        let allowed = policy.allows(subject, &attributes);
        json!({"allowed": allowed})
    }
}

fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|one| one.as_str().map(str::to_owned))
        .collect()
}

fn user_info(caller: &Caller) -> Value {
    let mut info = json!({"username": caller.user, "groups": caller.groups});
    if !caller.uid.is_empty() {
        info["uid"] = json!(caller.uid);
    }
    if !caller.extra.is_empty() {
        info["extra"] = json!(caller.extra);
    }
    info
}
