"""An operator written with kopf: it makes a ConfigMap for every Greeting, follows its changes and
cleans up through a finalizer."""

import kopf
from kubernetes import client, config

config.load_kube_config()
core = client.CoreV1Api()


@kopf.on.create("story.mainstay.local", "v1", "greetings")
def create(spec, name, namespace, **_):
    meta = client.V1ObjectMeta(name=f"greeting-{name}")
    core.create_namespaced_config_map(namespace, client.V1ConfigMap(metadata=meta, data={"text": spec["text"]}))
    return {"made": f"greeting-{name}"}


@kopf.on.field("story.mainstay.local", "v1", "greetings", field="spec.text", when=lambda old, **_: old is not None)
def change(new, name, namespace, **_):
    core.patch_namespaced_config_map(f"greeting-{name}", namespace, {"data": {"text": new}})


@kopf.on.delete("story.mainstay.local", "v1", "greetings")
def delete(name, namespace, **_):
    core.delete_namespaced_config_map(f"greeting-{name}", namespace)
