//! The verbs for stored objects: get, create, update, patch, bind.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Server,
    errors::{ApiError, Cause},
    event_versions::{to_shown, to_stored},
    node_authorizer,
    patch::Patch,
    pods,
    request::{Caller, Query, Target},
    selectors::Selectors,
    storage::{Key, Storage},
    strategy::{self, remove, text},
};

impl Target {
    /// The key of the object.
    pub(super) fn key(&self) -> Result<Key, ApiError> {
        let name = self.required_name()?;
        Ok(Key::new(self.resource, self.namespace_text(), name))
    }

    /// The selectors of a list, a watch or a deletion of a collection.
    pub(super) fn selectors(&self, query: &Query) -> Result<Selectors, ApiError> {
        let mut fields = query.text("fieldSelector").to_owned();
        // A list or watch of a single name selects that object.
        if let Some(name) = &self.name {
            let separator = if fields.is_empty() { "" } else { "," };
            fields = format!("{fields}{separator}metadata.name={name}");
        }
        Selectors::parse(self.resource, query.text("labelSelector"), &fields)
    }
}

impl Server {
    /// Reads an object.
    pub(super) fn get(&self, target: &Target) -> Result<Value, ApiError> {
        let found = self.storage.lock().get(&target.key()?);
        let found = found.ok_or_else(|| {
            ApiError::not_found(target.resource, target.required_name().unwrap_or_default())
        })?;
        Ok(to_shown(target.resource, &found))
    }

    /// Creates an object.
    pub(super) fn create(
        &self,
        target: &Target,
        object: Value,
        query: &Query,
        caller: &Caller,
    ) -> Result<Value, ApiError> {
        let mut storage = self.storage.lock();
        let object = without_uid(object);
        let created = self.create_in(&mut storage, target, object, query.dry_run(), caller)?;
        self.publish();
        Ok(to_shown(target.resource, &created))
    }

    /// Creates an object that keeps its UID, like an object of a restored cluster.
    pub(super) fn restore(&self, target: &Target, object: Value) -> Result<Value, ApiError> {
        let mut storage = self.storage.lock();
        let created = self.create_in(&mut storage, target, object, false, &Caller::admin())?;
        self.publish();
        Ok(to_shown(target.resource, &created))
    }

    /// Edits a stored object without validation.
    pub(super) fn edit(
        &self,
        target: &Target,
        edit: impl FnOnce(&mut Value),
    ) -> Result<Value, ApiError> {
        let mut storage = self.storage.lock();
        let key = target.key()?;
        let old = storage.get(&key);
        let old = old.ok_or_else(|| ApiError::not_found(target.resource, &key.name))?;
        let mut object = Value::clone(&old);
        edit(&mut object);
        let stored = storage.put(key, object);
        self.publish();
        Ok(to_shown(target.resource, &stored))
    }

    pub(super) fn create_in(
        &self,
        storage: &mut Storage,
        target: &Target,
        object: Value,
        dry_run: bool,
        caller: &Caller,
    ) -> Result<Arc<Value>, ApiError> {
        let resource = target.resource;
        let mut object = to_stored(resource, recognised(target, object)?);
        if !object["metadata"].is_object() {
            object["metadata"] = json!({});
        }
        if !text(&object, "/metadata/resourceVersion").is_empty() {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let namespace = target.namespace_text();
        place(target, &mut object)?;
        self.name(resource, &mut object)?;
        let name = text(&object, "/metadata/name").to_owned();
        if self.settings.lock().policy.authorizes_nodes()
            && let Some(node) = node_authorizer::node_of(caller)
        {
            node_authorizer::admit(node, target, &object)
                .map_err(|why| ApiError::forbidden(resource, &name, &why))?;
        }
        if resource.namespaced {
            check_namespace(storage, resource, namespace, &name)?;
        }
        let key = Key::new(resource, namespace, &name);
        if storage.get(&key).is_some() {
            return Err(ApiError::already_exists(resource, &name));
        }
        let metadata = &mut object["metadata"];
        for field in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "managedFields",
        ] {
            remove(metadata, field);
        }
        if text(metadata, "/uid").is_empty() {
            metadata["uid"] = json!(self.clock.uid());
        }
        metadata["creationTimestamp"] = json!(self.clock.text());
        remove(metadata, "generation");
        if resource.generations {
            metadata["generation"] = json!(1);
        }
        strategy::create(resource, &mut object, &self.clock, caller)?;
        self.admit(storage, resource, namespace, &mut object)?;
        if dry_run {
            return Ok(Arc::new(object));
        }
        let stored = storage.put(key.clone(), object);
        // The response does not include the changes of controllers.
        self.after_write(storage, resource, &key);
        Ok(stored)
    }

    /// Generates the name from `generateName` if it is not set, and validates it.
    fn name(&self, resource: &super::Resource, object: &mut Value) -> Result<(), ApiError> {
        let name = text(object, "/metadata/name");
        let beginning = text(object, "/metadata/generateName");
        if name.is_empty() && !beginning.is_empty() {
            let name = format!("{beginning}{}", self.clock.suffix());
            object["metadata"]["name"] = json!(name);
            return Ok(());
        }
        if name.is_empty() {
            let cause = Cause::required("metadata.name", "name or generateName is required");
            return Err(ApiError::invalid(resource, "", &[cause]));
        }
        // Names of certificate signing requests are not restricted.
        let fits = resource.kind == "CertificateSigningRequest"
            || name.len() <= 253
                && name.split('.').all(|label| {
                    !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
                })
                && name.bytes().all(|byte| {
                    byte.is_ascii_lowercase()
                        || byte.is_ascii_digit()
                        || matches!(byte, b'-' | b'.' | b':')
                });
        if !fits {
            let cause = Cause::invalid(
                "metadata.name",
                &json!(name),
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            );
            return Err(ApiError::invalid(resource, name, &[cause]));
        }
        Ok(())
    }

    /// Replaces an object.
    pub(super) fn update(
        &self,
        target: &Target,
        object: Value,
        query: &Query,
        caller: &Caller,
    ) -> Result<Value, ApiError> {
        let resource = target.resource;
        let name = target.required_name()?.to_owned();
        let mut object = to_stored(resource, recognised(target, object)?);
        let sent = text(&object, "/metadata/name");
        if sent != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            )));
        }
        place(target, &mut object)?;
        let mut storage = self.storage.lock();
        let Some(old) = storage.get(&target.key()?) else {
            if resource.create_on_update && target.subresource.is_empty() {
                remove(&mut object["metadata"], "resourceVersion");
                let object = without_uid(object);
                let created =
                    self.create_in(&mut storage, target, object, query.dry_run(), caller)?;
                self.publish();
                return Ok(to_shown(resource, &created));
            }
            return Err(ApiError::not_found(resource, &name));
        };
        check_uid(target, &old, text(&object, "/metadata/uid"))?;
        let revision = text(&object, "/metadata/resourceVersion");
        if revision.is_empty() && !resource.unconditional_update {
            let cause = Cause::invalid(
                "metadata.resourceVersion",
                &json!(0),
                "must be specified for an update",
            );
            return Err(ApiError::invalid(resource, &name, &[cause]));
        }
        if !revision.is_empty() && revision != text(&old, "/metadata/resourceVersion") {
            return Err(ApiError::modified(resource, &name));
        }
        let stored = self.write(&mut storage, target, &old, object, query.dry_run())?;
        self.publish();
        Ok(to_shown(resource, &stored))
    }

    /// Patches an object. Server-side apply creates an object that does not exist.
    pub(super) fn patch(
        &self,
        target: &Target,
        patch: &Patch,
        query: &Query,
        caller: &Caller,
    ) -> Result<(Value, bool), ApiError> {
        let resource = target.resource;
        let name = target.required_name()?.to_owned();
        if matches!(patch, Patch::Apply(_)) && query.text("fieldManager").is_empty() {
            return Err(ApiError::bad_request(
                "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
            ));
        }
        let mut storage = self.storage.lock();
        let Some(old) = storage.get(&target.key()?) else {
            if let (Patch::Apply(object), "") = (patch, target.subresource.as_str()) {
                let created = self.create_in(
                    &mut storage,
                    target,
                    without_uid(object.clone()),
                    query.dry_run(),
                    caller,
                )?;
                self.publish();
                return Ok((to_shown(resource, &created), true));
            }
            return Err(ApiError::not_found(resource, &name));
        };
        let shown = to_shown(resource, &old);
        let next = to_stored(resource, patch.apply(resource.kind, &shown)?);
        let revision = text(&next, "/metadata/resourceVersion");
        if !revision.is_empty() && revision != text(&old, "/metadata/resourceVersion") {
            return Err(ApiError::modified(resource, &name));
        }
        if matches!(patch, Patch::Apply(_)) {
            check_uid(target, &old, text(&next, "/metadata/uid"))?;
        }
        let stored = self.write(&mut storage, target, &old, next, query.dry_run())?;
        self.publish();
        Ok((to_shown(resource, &stored), false))
    }

    /// Stores the new state of an object, unless it has not changed or the request is a dry run.
    pub(super) fn write(
        &self,
        storage: &mut Storage,
        target: &Target,
        old: &Arc<Value>,
        wanted: Value,
        dry_run: bool,
    ) -> Result<Arc<Value>, ApiError> {
        let mut next = strategy::update(target, old, wanted)?;
        remove(&mut next["metadata"], "managedFields");
        if next == **old || dry_run {
            return Ok(Arc::new(next));
        }
        let key = target.key()?;
        if is_finished(&next) {
            storage.put(key.clone(), next);
            let gone = storage.remove(&key);
            self.after_write(storage, target.resource, &key);
            return gone.ok_or_else(|| ApiError::internal("the object is gone"));
        }
        let stored = storage.put(key.clone(), next);
        self.after_write(storage, target.resource, &key);
        Ok(stored)
    }

    /// `pods/binding`: binds a pod to a node.
    pub(super) fn bind(&self, target: &Target, binding: &Value) -> Result<Value, ApiError> {
        let mut storage = self.storage.lock();
        let key = target.key()?;
        let old = storage
            .get(&key)
            .ok_or_else(|| ApiError::not_found(target.resource, &key.name))?;
        check_uid(target, &old, text(binding, "/metadata/uid"))?;
        let node = text(&old, "/spec/nodeName");
        let gates = old["spec"]["schedulingGates"].as_array();
        let name = &key.name;
        let why = if old["metadata"]["deletionTimestamp"].is_string() {
            format!("pod {name} is being deleted, cannot be assigned to a host")
        } else if !node.is_empty() {
            format!("pod {name} is already assigned to node {node:?}")
        } else if gates.is_some_and(|gates| !gates.is_empty()) {
            format!("pod {name} has non-empty .spec.schedulingGates")
        } else {
            String::new()
        };
        if !why.is_empty() {
            return Err(ApiError::conflict(target.resource, name, &why));
        }
        let mut pod = Value::clone(&old);
        pods::bind(&mut pod, text(binding, "/target/name"), &self.clock.text());
        storage.put(key, pod);
        self.publish();
        Ok(
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
        )
    }
}

/// Removes the UID that the caller may have set in a new object.
fn without_uid(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata") {
        remove(metadata, "uid");
    }
    object
}

/// Whether an object that is being deleted can be removed: its grace period is zero, it has no
/// finalizers, and it is not a namespace.
pub(super) fn is_finished(object: &Value) -> bool {
    let metadata = &object["metadata"];
    let unhindered = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
    let namespace = object["kind"] == "Namespace";
    metadata["deletionTimestamp"].is_string()
        && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
        && unhindered
        && !namespace
}

/// Checks that an object has the target's API version and kind, or sets them.
fn recognised(target: &Target, mut object: Value) -> Result<Value, ApiError> {
    let resource = target.resource;
    let wanted = (resource.api_version(), resource.kind);
    if !object.is_object() {
        return Err(ApiError::bad_request(
            "the object provided is unrecognized: it is no JSON object",
        ));
    }
    let sent = (text(&object, "/apiVersion"), text(&object, "/kind"));
    match sent {
        ("", "") => {
            object["apiVersion"] = json!(wanted.0);
            object["kind"] = json!(wanted.1);
        }
        (version, kind) if version == wanted.0 && kind == wanted.1 => {}
        (version, kind) => {
            return Err(ApiError::bad_request(format!(
                "{kind} in version {version:?} cannot be handled as a {}: converting ({version}.{kind}) to ({}.{}): unknown conversion",
                wanted.1, wanted.0, wanted.1
            )));
        }
    }
    Ok(object)
}

/// Sets the object's namespace to that of the path.
fn place(target: &Target, object: &mut Value) -> Result<(), ApiError> {
    if !target.resource.namespaced {
        remove(&mut object["metadata"], "namespace");
        return Ok(());
    }
    let namespace = target.namespace_text();
    let sent = text(object, "/metadata/namespace");
    if !sent.is_empty() && sent != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if namespace.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    object["metadata"]["namespace"] = json!(namespace);
    Ok(())
}

fn check_namespace(
    storage: &Storage,
    resource: &super::Resource,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let namespaces = super::resources::find("", "v1", "namespaces");
    let namespaces = namespaces.ok_or_else(|| ApiError::internal("no namespaces"))?;
    let found = storage
        .get(&Key::new(namespaces, "", namespace))
        .ok_or_else(|| ApiError::not_found(namespaces, namespace))?;
    if found["metadata"]["deletionTimestamp"].is_string() {
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        return Err(ApiError::forbidden(resource, name, &why));
    }
    Ok(())
}

/// Fails if the UID is set and is not the object's.
pub(super) fn check_uid(target: &Target, object: &Value, uid: &str) -> Result<(), ApiError> {
    let had = text(object, "/metadata/uid");
    if uid.is_empty() || uid == had {
        return Ok(());
    }
    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {had}");
    let name = text(object, "/metadata/name");
    Err(ApiError::conflict(target.resource, name, &why))
}

/// The error for a revision that has been compacted.
pub(super) fn too_old(wanted: u64, oldest: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {wanted} ({oldest})"))
}
