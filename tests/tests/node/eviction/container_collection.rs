//! Containers that no pod needs.

use cri_proto::runtime::v1::ListContainersRequest;

use super::*;

pub(super) async fn run(node: Result<Node>) -> Result<()> {
    let flags = flags(&[
        "--eviction-hard=memory.available<1Mi",
        "--maximum-dead-containers-per-container=0",
    ]);
    let site = Site::new(node, &flags).await?;
    let with_job = |spec: &mut Value| {
        let mut job = spec["containers"][0].clone();
        job["name"] = json!("job");
        job["command"] = json!(["true"]);
        spec["containers"].as_array_mut().unwrap().push(job);
    };
    site.create("pod", "true", with_job).await?;
    let job_of = |pod: &Value| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        let job = statuses
            .into_iter()
            .flatten()
            .find(|it| it["name"] == "job");
        job.cloned().unwrap_or_default()
    };
    let has_ended = |pod: &Value| job_of(pod)["state"]["terminated"]["reason"] == "Completed";
    site.cluster.await_pod("pod", SOON, has_ended).await?;
    let is_gone = async |node: &Node| {
        let mut runtime = node.runtime().await?;
        let all = runtime
            .list_containers(ListContainersRequest::default())
            .await?;
        let all = all.into_inner().containers;
        Ok(!all
            .iter()
            .any(|it| it.metadata.as_ref().is_some_and(|it| it.name == "job")))
    };
    let node = &site.cluster.node;
    node.await_until("the dead container is gone", SOON, is_gone)
        .await?;
    let pod = site.cluster.pod("pod").await?;
    ensure!(has_ended(&pod), "its end is forgotten: {pod:#}");
    ensure!(
        job_of(&pod)["restartCount"] == 0,
        "it was restarted: {pod:#}"
    );
    site.delete("pod").await
}
