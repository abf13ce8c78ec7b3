//! A pod's whole life, through the socket, with the daemon killed in between.

use cri::v1;

use crate::support::{Node, container_config, sandbox_config};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_runs_logs_execs_outlives_the_daemon_and_leaves_nothing() {
    let mut node = Node::start().await;
    let pod = node.run_sandbox(sandbox_config(&node, "web")).await;
    let web = node.run(&pod, container_config("web", &[])).await;

    let status = node.status(&web).await;
    assert_eq!(
        status.state,
        i32::from(v1::ContainerState::ContainerRunning)
    );
    node.wait_for("the first line of the log", || {
        node.log("web", "web")
            .iter()
            .any(|line| line == "stdout F web serves HTTP on port 8080")
    })
    .await;

    let answer = node
        .exec(
            &web,
            &["/mainstay", "hello", "get", "http://127.0.0.1:8080/"],
        )
        .await;
    assert_eq!(
        (answer.exit_code, answer.stdout.as_slice()),
        (0, &b"web\n"[..]),
        "{answer:?}"
    );
    assert_eq!(
        node.exec(&web, &["/mainstay", "hello", "exit", "7"])
            .await
            .exit_code,
        7
    );

    let done = node
        .run(&pod, container_config("done", &["exit", "3"]))
        .await;
    let status = node.wait_exit(&done).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (3, "Error"));

    node.kill_daemon();
    node.launch().await;
    let status = node.status(&web).await;
    assert_eq!(
        status.state,
        i32::from(v1::ContainerState::ContainerRunning)
    );
    assert_eq!(node.status(&done).await.exit_code, 3);
    let answer = node
        .exec(
            &web,
            &["/mainstay", "hello", "get", "http://127.0.0.1:8080/"],
        )
        .await;
    assert_eq!(answer.stdout, b"web\n");

    node.stop(&web, 10).await;
    let status = node.status(&web).await;
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (0, "Completed"),
        "asked, not killed"
    );

    node.remove_sandbox(&pod).await;
    // The end of the shim is not waited for.
    node.wait_for("everything to be gone", || node.leftovers().is_empty())
        .await;
}
