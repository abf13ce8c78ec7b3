//! The stream of container events, and the runtime's status.

use cri::v1::{self, ContainerEventType as Event};

use crate::support::{Node, container_config, sandbox_config};

#[tokio::test(flavor = "multi_thread")]
async fn container_events_are_sent_as_they_happen() {
    let node = Node::start().await;
    let mut runtime = node.cri.clone().runtime;
    let mut events = runtime
        .get_container_events(v1::GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    let pod = node.run_sandbox(sandbox_config(&node, "life")).await;
    let container = node
        .run(&pod, container_config("short", &["exit", "5"]))
        .await;
    node.wait_exit(&container).await;
    node.remove_sandbox(&pod).await;
    let mut seen = Vec::new();
    while seen.len() < 6 {
        let event = events.message().await.unwrap().unwrap();
        if event.container_event_type == i32::from(Event::ContainerStoppedEvent) {
            assert_eq!(event.containers_statuses[0].exit_code, 5);
        }
        assert_eq!(event.pod_sandbox_status.as_ref().unwrap().id, pod);
        seen.push((event.container_id, event.container_event_type));
    }
    let of = |id: &str, event: Event| (id.to_owned(), i32::from(event));
    let expected = [
        of(&pod, Event::ContainerStartedEvent),
        of(&container, Event::ContainerCreatedEvent),
        of(&container, Event::ContainerStartedEvent),
        of(&container, Event::ContainerStoppedEvent),
        of(&container, Event::ContainerDeletedEvent),
        of(&pod, Event::ContainerDeletedEvent),
    ];
    assert_eq!(seen, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_the_runtime_status_is_reported() {
    let node = Node::start().await;
    let mut cri = node.cri.clone();
    let (a, b) = (
        node.run_sandbox(sandbox_config(&node, "a")).await,
        node.run_sandbox(sandbox_config(&node, "b")).await,
    );
    let running = node.run(&a, container_config("one", &["sleep"])).await;
    let ended = node.run(&b, container_config("two", &["exit"])).await;
    node.wait_exit(&ended).await;
    let by_label = v1::ListPodSandboxRequest {
        filter: Some(v1::PodSandboxFilter {
            label_selector: [("app".to_owned(), "b".to_owned())].into(),
            ..Default::default()
        }),
    };
    let found = cri
        .runtime
        .list_pod_sandbox(by_label)
        .await
        .unwrap()
        .into_inner()
        .items;
    assert_eq!(found.iter().map(|pod| &pod.id).collect::<Vec<_>>(), [&b]);
    let by_state = v1::ListContainersRequest {
        filter: Some(v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: v1::ContainerState::ContainerRunning.into(),
            }),
            ..Default::default()
        }),
    };
    let found = cri
        .runtime
        .list_containers(by_state)
        .await
        .unwrap()
        .into_inner()
        .containers;
    assert_eq!(found.iter().map(|c| &c.id).collect::<Vec<_>>(), [&running]);

    let status = cri
        .runtime
        .status(v1::StatusRequest { verbose: true })
        .await
        .unwrap()
        .into_inner();
    assert!(
        status
            .status
            .unwrap()
            .conditions
            .iter()
            .all(|condition| condition.status)
    );
    let fs = cri
        .images
        .image_fs_info(v1::ImageFsInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert!(fs.image_filesystems[0].used_bytes.unwrap().value > 1 << 20);
    let stats = v1::PodSandboxStatsRequest { pod_sandbox_id: a };
    let stats = cri
        .runtime
        .pod_sandbox_stats(stats)
        .await
        .unwrap()
        .into_inner()
        .stats
        .unwrap();
    let linux = stats.linux.unwrap();
    assert_eq!(linux.containers.len(), 1);
    assert!(linux.process.unwrap().process_count.unwrap().value >= 1);
}
