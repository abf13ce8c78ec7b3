//! Images through the socket: the built-in one exists, and is found by its names.

use cri::v1;

use crate::support::{HELLO, Node, container_config, sandbox_config};

#[tokio::test(flavor = "multi_thread")]
async fn the_hello_image_is_always_there_and_can_be_pulled_without_a_registry() {
    let node = Node::start().await;
    let mut images = node.cri.clone().images;
    let spec = |image: &str| {
        Some(v1::ImageSpec {
            image: image.into(),
            ..Default::default()
        })
    };
    let status = v1::ImageStatusRequest {
        image: spec("mainstay.local/hello"),
        verbose: true,
    };
    let image = images
        .image_status(status)
        .await
        .unwrap()
        .into_inner()
        .image
        .unwrap();
    assert_eq!(image.repo_tags, [HELLO]);
    assert!(image.pinned && image.size > 0);
    let pull = v1::PullImageRequest {
        image: spec(HELLO),
        ..Default::default()
    };
    assert_eq!(
        images
            .pull_image(pull)
            .await
            .unwrap()
            .into_inner()
            .image_ref,
        image.id
    );
    let remove = v1::RemoveImageRequest { image: spec(HELLO) };
    images.remove_image(remove).await.unwrap();
    let again = v1::PullImageRequest {
        image: spec(HELLO),
        ..Default::default()
    };
    let again = images.pull_image(again).await.unwrap().into_inner();
    assert_eq!(again.image_ref, image.id, "it comes back");
    let other = v1::PullImageRequest {
        image: spec("mainstay.local/other"),
        ..Default::default()
    };
    let refused = images.pull_image(other).await.unwrap_err();
    assert_eq!(refused.code(), cri::tonic::Code::NotFound);
    let missing = v1::ImageStatusRequest {
        image: spec("docker.io/library/none"),
        verbose: false,
    };
    assert_eq!(
        images
            .image_status(missing)
            .await
            .unwrap()
            .into_inner()
            .image,
        None
    );
    let pod = node.run_sandbox(sandbox_config(&node, "x")).await;
    let mut config = container_config("x", &["exit"]);
    config.image = spec("docker.io/library/none");
    let refused = node.try_create(&pod, config).await.unwrap_err();
    assert_eq!(refused.code(), cri::tonic::Code::NotFound);
}
