"""The Python client against a real cluster: every kind of request it makes, with pods that run."""

import threading
import time

from kubernetes import client, config, dynamic, watch
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream

config.load_kube_config()
core = client.CoreV1Api()
maps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
NS = "default"


def refused(code, call):
    try:
        call()
    except ApiException as error:
        assert error.status == code, error
    else:
        raise AssertionError(f"was not refused with {code}")


def objects():
    labels = {"story": "python"}
    for n in range(5):
        meta = client.V1ObjectMeta(name=f"map-{n}", labels=labels)
        core.create_namespaced_config_map(NS, client.V1ConfigMap(metadata=meta, data={"n": str(n)}))
    again = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="map-0"))
    refused(409, lambda: core.create_namespaced_config_map(NS, again))

    seen, token = [], None
    while True:
        page = core.list_namespaced_config_map(
            NS, label_selector="story=python", limit=2, _continue=token
        )
        seen += [item.metadata.name for item in page.items]
        token = page.metadata._continue
        if not token:
            break
    assert seen == [f"map-{n}" for n in range(5)], seen

    def patch(body, kind):
        return maps.patch(name="map-0", namespace=NS, body=body, content_type=kind).to_dict()

    data = patch({"data": {"merged": "yes"}}, "application/merge-patch+json")["data"]
    assert data == {"n": "0", "merged": "yes"}, data
    data = patch({"data": {"merged": None}}, "application/strategic-merge-patch+json")["data"]
    assert data == {"n": "0"}, data
    steps = [{"op": "replace", "path": "/data/n", "value": "zero"}]
    assert patch(steps, "application/json-patch+json")["data"] == {"n": "zero"}

    applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "map-0"}, "data": {"n": "mine"}}
    refused(409, lambda: maps.server_side_apply(body=applied, name="map-0", namespace=NS, field_manager="python"))
    owned = maps.server_side_apply(
        body=applied, name="map-0", namespace=NS, field_manager="python", force_conflicts=True
    ).to_dict()
    assert owned["data"] == {"n": "mine"}
    managers = {(m["manager"], m["operation"]) for m in owned["metadata"]["managedFields"]}
    assert ("python", "Apply") in managers, managers


def watching():
    listed = core.list_namespaced_config_map(NS, label_selector="story=python")
    events, ready = [], threading.Event()

    def follow():
        source = watch.Watch().stream(
            core.list_namespaced_config_map,
            NS,
            label_selector="story=python",
            resource_version=listed.metadata.resource_version,
            timeout_seconds=30,
        )
        ready.set()
        for event in source:
            events.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    ready.wait(10)
    core.patch_namespaced_config_map("map-1", NS, {"data": {"x": "y"}})
    core.delete_namespaced_config_map("map-1", NS)
    thread.join(30)
    assert events == [("MODIFIED", "map-1"), ("DELETED", "map-1")], events
    core.delete_collection_namespaced_config_map(NS, label_selector="story=python")
    left = core.list_namespaced_config_map(NS, label_selector="story=python").items
    assert not left, left


def pods():
    script = "echo hello from the pod; mkdir -p /www; echo page > /www/index.html; busybox httpd -f -p 8080 -h /www"
    container = client.V1Container(
        name="box", image="local.test/busybox:1", image_pull_policy="Never",
        command=["/bin/busybox", "sh", "-c", script.replace("mkdir", "busybox mkdir")],
        env=[client.V1EnvVar(name="PATH", value="/bin")],
    )
    spec = client.V1PodSpec(containers=[container], termination_grace_period_seconds=0)
    meta = client.V1ObjectMeta(name="box")
    core.create_namespaced_pod(NS, client.V1Pod(metadata=meta, spec=spec))
    for event in watch.Watch().stream(
        core.list_namespaced_pod, NS, field_selector="metadata.name=box", timeout_seconds=60
    ):
        if event["object"].status.phase == "Running":
            break
    else:
        raise AssertionError("the pod did not run")

    for _ in range(100):
        log = core.read_namespaced_pod_log("box", NS)
        if log:
            break
        time.sleep(0.1)
    assert log == "hello from the pod\n", log

    session = stream(
        core.connect_get_namespaced_pod_exec, "box", NS,
        command=["/bin/busybox", "sh", "-c", "read word; echo got $word; echo oops >&2; exit 7"],
        stdin=True, stdout=True, stderr=True, tty=False, _preload_content=False,
    )
    session.write_stdin("it\n")
    session.run_forever(timeout=30)
    assert session.read_stdout() == "got it\n"
    assert session.read_stderr() == "oops\n"
    assert session.returncode == 7, session.returncode

    forward = portforward(core.connect_get_namespaced_pod_portforward, "box", NS, ports="8080")
    socket = forward.socket(8080)
    socket.settimeout(20)
    socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
    answer = b""
    while chunk := socket.recv(4096):
        answer += chunk
    assert b"page" in answer, (answer, forward.error(8080))

    core.delete_namespaced_pod("box", NS)
    for _ in range(300):
        try:
            core.read_namespaced_pod("box", NS)
        except ApiException as error:
            assert error.status == 404, error
            return
        time.sleep(0.1)
    raise AssertionError("the pod did not go")


objects()
watching()
pods()
print("the Python story holds")
