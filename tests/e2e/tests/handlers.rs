//! A pod with another OCI runtime by its RuntimeClass.

use testkit::{Cluster, eventually};

const OBJECTS: &str = "
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: plain}
handler: runc
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  runtimeClassName: plain
  restartPolicy: Never
  containers: [{name: say, image: mainstay.local/hello, args: [say, by, another]}]
---
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: absent}
handler: nobody
---
apiVersion: v1
kind: Pod
metadata: {name: lost}
spec:
  runtimeClassName: absent
  containers: [{name: say, image: mainstay.local/hello}]
";

#[test]
fn a_runtime_class_names_another_runtime() {
    let cluster = Cluster::up_with(&["--runtime-handlers", "runc=/usr/sbin/runc"]);
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], OBJECTS)
        .success();
    eventually("the pod to end", || {
        let pod = cluster.get(&["pod", "other"]);
        if pod["status"]["phase"] == "Succeeded" {
            Ok(())
        } else {
            Err(pod["status"].to_string())
        }
    });
    let said = cluster.kubectl(&["logs", "other"]).success();
    assert_eq!(said, "by another\n");
    eventually("the reason of the other", || {
        let events = cluster.kubectl(&["get", "events", "-o", "json"]).stdout;
        if events.contains("no runtime handler") {
            Ok(())
        } else {
            Err(events)
        }
    });
}
