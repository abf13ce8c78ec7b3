//! Containers made by other OCI runtimes, as a RuntimeClass handler names them.

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

async fn lives_and_dies_with(handler: &str) {
    let node = Node::with_handlers(&["runc=/usr/sbin/runc", "crun=/usr/bin/crun"]).await;
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config(&node, handler)),
        runtime_handler: handler.into(),
    };
    let pod = node
        .cri
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await
        .unwrap()
        .into_inner()
        .pod_sandbox_id;
    let web = node.create(&pod, container_config("web", &[])).await;
    match node.try_start(&web).await {
        // crun wants a machine of one cgroup version; there is nothing that we could do for it.
        Err(refused) if refused.message().contains("hybrid mode not supported") => return,
        started => started.unwrap(),
    }
    node.wait_for("the server", || !node.log(handler, "web").is_empty())
        .await;
    let answer = node
        .exec(
            &web,
            &["/mainstay", "hello", "get", "http://127.0.0.1:8080/"],
        )
        .await;
    assert_eq!(
        answer.stdout,
        format!("{handler}\n").as_bytes(),
        "{answer:?}"
    );
    assert_eq!(
        node.exec(&web, &["/mainstay", "hello", "exit", "4"])
            .await
            .exit_code,
        4
    );
    let short = node
        .run(&pod, container_config("short", &["exit", "6"]))
        .await;
    assert_eq!(node.wait_exit(&short).await.exit_code, 6);
    let mut config = container_config("missing", &[]);
    config.command = vec!["/no/such".into()];
    let missing = node.create(&pod, config).await;
    let refused = node.try_start(&missing).await.unwrap_err();
    assert!(refused.message().contains("/no/such"), "{refused}");
    node.stop(&web, 10).await;
    assert_eq!(node.status(&web).await.exit_code, 0);
    node.remove_sandbox(&pod).await;
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runc_runs_containers() {
    lives_and_dies_with("runc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crun_runs_containers() {
    lives_and_dies_with("crun").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_handler_is_refused() {
    let node = Node::start().await;
    let request = v1::RunPodSandboxRequest {
        config: Some(sandbox_config(&node, "x")),
        runtime_handler: "kata".into(),
    };
    let refused = node
        .cri
        .clone()
        .runtime
        .run_pod_sandbox(request)
        .await
        .unwrap_err();
    assert!(refused.message().contains("kata"), "{refused}");
    assert!(node.leftovers().is_empty());
}
