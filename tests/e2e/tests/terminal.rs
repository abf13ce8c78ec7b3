//! The command line in a terminal: sessions with keys and window sizes, editors, questions,
//! progress, and colours, which appear on a terminal only.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use testkit::{Cluster, Terminal, eventually};

/// A pod that reads its standard input, and has a shell.
const BOX: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: box
    image: local.test/busybox:1
    imagePullPolicy: Never
    stdin: true
    tty: true
    env: [{name: PATH, value: /bin}]
    command: [/bin/busybox, sh, -c]
    args: ["busybox --install -s /bin; exec sh"]
"#;

const RED_SUN: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sun}\ndata: {colour: red}\n";

fn cluster() -> Cluster {
    let cluster = Cluster::up();
    let archive = e2e::busybox_archive(cluster.machine().dir());
    cluster.mainstay(&["image", "import", &archive]).success();
    cluster.kubectl_stdin(&["apply", "-f", "-"], BOX).success();
    cluster
        .kubectl(&["wait", "--for=condition=Ready", "pod/box", "--timeout=60s"])
        .success();
    cluster
}

fn executable(directory: &Path, name: &str, text: &str) -> String {
    let path = directory.join(name);
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    path.display().to_string()
}

/// Runs a command in a terminal until it ends.
fn ended(cluster: &Cluster, line: &str, environment: &[(&str, &str)]) -> testkit::Ran {
    cluster.terminal(line, environment).end()
}

#[test]
fn sessions_in_a_terminal_get_keys_and_window_sizes_and_restore_the_terminal() {
    let cluster = cluster();
    exec_session(&cluster);
    attach_session(&cluster);
    run_session(&cluster);
    debug_session(&cluster);
}

fn exec_session(cluster: &Cluster) {
    let machine = cluster.machine();
    // The shell after kubectl shows what kubectl left behind.
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary under test");
    let line =
        format!("{binary} kubectl exec -it box -- sh; echo code $?; read key; echo key $key");
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let mut terminal = Terminal::start(machine, &line, &[("KUBECONFIG", &kubeconfig)]);
    terminal.wait_for("# ");
    eventually("the terminal to be raw", || {
        match terminal.does_echo(machine) {
            false => Ok(()),
            true => Err("it echoes".to_owned()),
        }
    });
    terminal.press("stty size\r");
    terminal.wait_for("24 80");
    terminal.resize(machine, 132, 43);
    eventually("the new size of the window", || {
        terminal.press("stty size\r");
        match terminal.shown().contains("43 132") {
            true => Ok(()),
            false => Err(terminal.shown()),
        }
    });
    // Ctrl-C interrupts the command in the container, not kubectl.
    terminal.press("sleep 1000; echo interrupted $?\r");
    terminal.wait_for("interrupted $?\r\n");
    terminal.press("\x03");
    terminal.press("echo still $((40+2))\r");
    terminal.wait_for("still 42");
    terminal.press("exit 7\r");
    terminal.wait_for("code 7");
    assert!(terminal.does_echo(machine), "{}", terminal.shown());
    terminal.press("enter\r");
    terminal.wait_for("key enter");
    assert!(terminal.end().ok);
}

fn attach_session(cluster: &Cluster) {
    let mut terminal = cluster.terminal("kubectl attach -it box", &[]);
    terminal.wait_for("If you don't see a command prompt, try pressing enter.");
    terminal.press("\recho attached $((1+1))\r");
    terminal.wait_for("attached 2");
    // Ctrl-P, Ctrl-Q leave the session; the container's shell goes on.
    terminal.press("\x10\x11");
    let ran = terminal.end();
    assert!(ran.ok, "{ran:?}");
    let resume = "Session ended, resume using 'kubectl attach box -c box -n default -i -t' command";
    assert!(ran.stdout.contains(resume), "{}", ran.stdout);
    let pod = cluster.get(&["pod", "box"]);
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
}

fn run_session(cluster: &Cluster) {
    let line = "kubectl run shell -it --rm --restart=Never --image=local.test/busybox:1 \
                --image-pull-policy=Never --command -- /bin/busybox sh";
    let mut terminal = cluster.terminal(line, &[]);
    terminal.wait_for("# ");
    terminal.press("busybox stty size; exit 3\r");
    terminal.wait_for("24 80");
    let ran = terminal.end();
    assert!(
        ran.stdout
            .contains("pod \"shell\" deleted from default namespace"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.code, Some(3), "{}", ran.stdout);
    assert!(!cluster.kubectl(&["get", "pod", "shell"]).ok);
}

fn debug_session(cluster: &Cluster) {
    let line = "kubectl debug -it box --image=local.test/busybox:1 --target=box \
                --profile=general -- /bin/busybox sh";
    let mut terminal = cluster.terminal(line, &[]);
    terminal.wait_for("# ");
    terminal.press("busybox ps; exit\r");
    terminal.wait_for("sh");
    let ran = terminal.end();
    assert!(ran.ok, "{}", ran.stdout);
}

#[test]
fn editors_questions_and_watches_work_in_a_terminal() {
    let cluster = Cluster::up();
    let machine = cluster.machine();
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], RED_SUN)
        .success();

    // The editor has the terminal, and reads a key from it.
    let editor = executable(
        machine.dir(),
        "editor",
        "#!/bin/sh\ntest -t 0 && test -t 1 || exit 9\nprintf 'colour? '\nread colour\n\
         sed -i \"s/red/$colour/\" \"$1\"\n",
    );
    let mut terminal = cluster.terminal("kubectl edit cm sun", &[("KUBE_EDITOR", &editor)]);
    terminal.wait_for("colour? ");
    terminal.press("gold\r");
    let ran = terminal.end();
    assert!(
        ran.ok && ran.stdout.contains("configmap/sun edited"),
        "{ran:?}"
    );
    assert_eq!(cluster.get(&["cm", "sun"])["data"]["colour"], "gold");

    // No answer but `y` deletes.
    for (answer, exists) in [("n\r", true), ("y\r", false)] {
        let mut terminal = cluster.terminal("kubectl delete cm sun --interactive", &[]);
        terminal.wait_for("(y/N): ");
        terminal.press(answer);
        assert!(terminal.end().ok);
        assert_eq!(
            cluster.kubectl(&["get", "cm", "sun"]).ok,
            exists,
            "{answer}"
        );
    }

    let mut terminal = cluster.terminal("kubectl get cm -w", &[]);
    terminal.wait_for("kube-root-ca.crt");
    cluster
        .kubectl_stdin(&["apply", "-f", "-"], RED_SUN)
        .success();
    terminal.wait_for("sun");
    terminal.press("\x03");
    assert!(!terminal.end().ok);
}

#[test]
fn colours_and_progress_appear_on_a_terminal_only() {
    let mut cluster = Cluster::up();
    let line = "kubectl get componentstatuses";
    let coloured = ended(&cluster, line, &[]);
    assert!(coloured.stdout.contains("\x1b["), "{coloured:?}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = ended(&cluster, line, &[variable]);
        assert!(!plain.stdout.contains('\x1b'), "{variable:?}: {plain:?}");
    }
    let piped = cluster.kubectl(&["get", "componentstatuses"]);
    let said = piped.stdout + &piped.stderr;
    assert!(!said.contains('\x1b'), "{said}");

    // The checklist of `up`: a coloured tick and a time for each component.
    cluster.stop();
    let data_dir = cluster.data_dir();
    let up = format!("up --node-name one --data-dir {}", data_dir.display());
    let mut coloured = cluster.terminal(&up, &[]);
    let before = coloured.wait_for("Ctrl-C");
    assert!(before.contains("\x1b[32m✓\x1b[0m "), "{before}");
    stop(&mut coloured);
    assert!(coloured.end().ok);
    let mut plain = cluster.terminal(&up, &[("NO_COLOR", "1")]);
    let before = plain.wait_for("Ctrl-C");
    assert!(
        before.contains("ok: ") && !before.contains('\x1b'),
        "{before}"
    );
    stop(&mut plain);
    assert!(plain.end().ok);
}

fn stop(terminal: &mut Terminal) {
    terminal.press("\x03");
}

#[test]
fn commands_that_print_end_quietly_with_their_reader() {
    let cluster = Cluster::up();
    let binary = std::env::var("MAINSTAY_BIN").expect("the binary under test");
    let place = format!("--data-dir {}", cluster.data_dir().display());
    for command in [
        "kubectl options".to_owned(),
        format!("status {place}"),
        format!("why node/one {place}"),
    ] {
        // Nobody reads the output.
        let line = format!("{binary} {command} 2>&1 >&3 3>&- | cat; true");
        let line = format!("exec 3> >(exec true); wait $!; {line}");
        let mut shell = cluster.machine().command("bash");
        shell
            .args(["-c", &line])
            .env("KUBECONFIG", cluster.kubeconfig());
        let ran: testkit::Ran = shell.output().expect("bash starts").into();
        assert!(!ran.stdout.contains("panicked"), "{command}: {ran:?}");
    }
}
