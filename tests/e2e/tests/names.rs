//! DNS of the cluster while the daemon restarts: a client that sends queries all the time gets every answer.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use testkit::{Cluster, eventually};

/// Timeout and attempts of a resolver without options in resolv.conf.
const TIMEOUT: Duration = Duration::from_secs(5);
const ATTEMPTS: usize = 2;

/// An A query for `kubernetes.default.svc.cluster.local`.
const QUESTION: &[u8] = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
    \x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\x00\x01";

/// Progress of the client.
#[derive(Default)]
struct Record {
    asked: AtomicUsize,
    answered: AtomicUsize,
    stop: AtomicBool,
}

fn ask_datagram(server: SocketAddr) -> io::Result<Vec<u8>> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.connect(server)?;
    socket.send(QUESTION)?;
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(buffer[..length].to_vec())
}

fn ask_stream(server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let length = u16::try_from(QUESTION.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), QUESTION].concat())?;
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

/// Fails unless the message is an answer with one address.
fn check(answer: &[u8]) -> io::Result<()> {
    let is_good = answer.len() > 12 && answer[3] & 15 == 0 && answer[6..8] == [0, 1];
    is_good
        .then_some(())
        .ok_or_else(|| io::Error::other(format!("{answer:?}")))
}

/// Sends queries over UDP and TCP in turn; returns the lookups that failed after all attempts of a resolver.
fn ask_all_the_time(server: SocketAddr, record: &Record) -> Vec<String> {
    let mut failures = Vec::new();
    while !record.stop.load(Ordering::SeqCst) {
        let number = record.asked.fetch_add(1, Ordering::SeqCst);
        let mut last = Err(io::Error::other("never asked"));
        for _ in 0..ATTEMPTS {
            let answer = match number % 2 {
                0 => ask_datagram(server),
                _ => ask_stream(server),
            };
            last = answer.and_then(|answer| check(&answer));
            if last.is_ok() {
                break;
            }
        }
        if let Err(error) = last {
            failures.push(format!("question {number}: {error}"));
        }
        record.answered.fetch_add(1, Ordering::SeqCst);
    }
    failures
}

fn wait_for_answers(record: &Record) {
    let goal = record.answered.load(Ordering::SeqCst) + 50;
    eventually("fifty answers", || {
        let answered = record.answered.load(Ordering::SeqCst);
        match answered >= goal {
            true => Ok(()),
            false => Err(format!("{answered} of {goal}")),
        }
    });
}

/// Waits until a query was sent that has no answer yet.
fn wait_for_question(record: &Record) {
    let answered = record.answered.load(Ordering::SeqCst);
    eventually("a question without an answer", || {
        let asked = record.asked.load(Ordering::SeqCst);
        match asked > answered {
            true => Ok(()),
            false => Err(format!("{asked} questions, {answered} answers")),
        }
    });
}

#[test]
fn names_resolve_through_a_crash_and_a_restart_of_the_daemon() {
    let mut cluster = Cluster::up();
    let service = cluster.get(&["service", "kube-dns", "--namespace=kube-system"]);
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let server: SocketAddr = format!("{address}:53").parse().expect("an address");
    let record = Arc::new(Record::default());
    let client = {
        let record = record.clone();
        let work = move || ask_all_the_time(server, &record);
        cluster.machine().thread(work)
    };
    wait_for_answers(&record);
    cluster.kill();
    wait_for_question(&record);
    cluster.start();
    wait_for_answers(&record);
    cluster.stop();
    wait_for_question(&record);
    cluster.start();
    wait_for_answers(&record);
    record.stop.store(true, Ordering::SeqCst);
    let failures = client.join().expect("the client comes to its end");
    assert!(failures.is_empty(), "{failures:?}");

    cluster.reset().success();
    let left = cluster.machine().run("ss", &["-Hlun"]).success();
    assert_eq!(left, "", "sockets are left");
}
