//! The etcd backend with real etcd servers on loopback.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::{
    etcd::{Cluster, TlsFiles},
    model::{Model, steps},
    *,
};
use proptest::{strategy::Strategy, strategy::ValueTree, test_runner::TestRunner};
use stdx::{FakeClock, SystemClock};
use store::{
    Codec, Durability, Error, Freshness, Key, ListRequest, Plain, Revision, Store, WatchItem,
    etcd::{Config, Etcd, Tls},
};

fn everything() -> Config {
    Config {
        root: Bytes::from_static(b"/"),
        patience: Duration::ZERO,
        ..Config::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_behaves_as_every_backend_does() {
    let cluster = Cluster::start(1);
    let store = cluster.connect(everything()).await;
    conformance::all(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_behaves_the_same_when_lists_come_from_the_watch_cache() {
    let cluster = Cluster::start(1);
    let store = cluster
        .connect(Config {
            trust_progress: Some(true),
            ..everything()
        })
        .await;
    conformance::all(&*store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_agrees_with_the_model() {
    let cluster = Cluster::start(1);
    let store = cluster.connect(everything()).await;
    let mut runner = TestRunner::deterministic();
    for case in 0..rounds() {
        let steps = steps(30).new_tree(&mut runner).unwrap().current();
        let mut model = Model::new(&format!("/case{case}/"), store.revision().await.unwrap());
        for step in &steps {
            model.step(&*store, step).await;
        }
        model.compare_watches(&*store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_of_other_clients_are_seen() {
    let cluster = Cluster::start(1);
    let other = cluster.connect(everything()).await;
    write(&*other, "/registry/a", "1").await;
    write(&*other, "/elsewhere", "1").await;
    let store = cluster.connect(Config::default()).await;
    let start = store.revision().await.unwrap();
    assert_eq!(value(&*store, "/registry/a").await.as_deref(), Some("1"));
    let mut watch = store.watch("/registry/".into(), start).await.unwrap();
    write(&*other, "/elsewhere", "2").await;
    let revision = write(&*other, "/registry/a", "2").await;
    let (seen, events) = next_events(&mut watch).await;
    assert_eq!(
        (seen, shown(&events)),
        (revision, vec!["~/registry/a=1>2".to_owned()])
    );
    let outside = commit(&*store, vec![put("/elsewhere", "3")]).await;
    assert!(matches!(outside, Err(Error::Invalid(_))), "{outside:?}");
    let key = Bytes::from("/registry/a");
    let (_, entry) = store.get(&key, Freshness::AtLeast(revision)).await.unwrap();
    assert_eq!(entry.unwrap().mod_revision, revision);
}

/// As [`Plain`], but values that begin with `!` cannot be read.
struct Readable;

impl Codec for Readable {
    type Draft = Bytes;
    type Object = Bytes;

    fn bytes<'a>(&self, draft: &'a Bytes) -> &'a Bytes {
        draft
    }

    fn load(&self, key: &Key, bytes: Bytes) -> Result<Bytes, String> {
        match bytes.starts_with(b"!") {
            true => Err(format!("{}: damaged", String::from_utf8_lossy(key))),
            false => Ok(bytes),
        }
    }

    fn publish(&self, _: &Key, draft: Bytes, _: Revision) -> Bytes {
        draft
    }

    fn stored(&self, object: &Bytes) -> Bytes {
        object.clone()
    }
}

/// Reads keys, and lists with prefixes: their values, or the keys that an error names.
async fn reads(store: &dyn Store<Readable>, wanted: &[&str], freshness: Freshness) -> Vec<String> {
    let mut all = Vec::new();
    for key in wanted {
        let request = ListRequest {
            freshness,
            ..list_request(key)
        };
        let read = match key.ends_with('/') {
            true => store.list(request).await.map(|listed| listed.entries),
            false => {
                let key = Bytes::copy_from_slice(key.as_bytes());
                let read = store.get(&key, freshness).await;
                read.map(|(_, entry)| Vec::from_iter(entry))
            }
        };
        all.push(match read {
            Ok(entries) => {
                let values = entries.iter().map(|entry| &entry.object[..]);
                String::from_utf8(values.collect::<Vec<_>>().join(&b' ')).unwrap()
            }
            Err(Error::Unreadable(keys)) => {
                let keys = keys.iter().map(|one| String::from_utf8_lossy(&one.key));
                format!("unreadable {}", keys.collect::<Vec<_>>().join(" "))
            }
            Err(error) => panic!("{key}: {error}"),
        });
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_cannot_be_read_is_named_and_everything_else_is_served() {
    let cluster = Cluster::start(1);
    let other = cluster.connect(everything()).await;
    for (key, value) in [("/a/1", "one"), ("/a/2", "!"), ("/b/1", "other")] {
        write(&*other, key, value).await;
    }
    let config = Config {
        endpoints: cluster.endpoints(),
        ..everything()
    };
    let store = config.connect(Readable).await.unwrap();
    let keys = ["/a/1", "/a/2", "/a/", "/b/"];
    let damaged = ["one", "unreadable /a/2", "unreadable /a/2", "other"];
    for freshness in [Freshness::Newest, Freshness::AtLeast(0)] {
        assert_eq!(reads(&*store, &keys, freshness).await, damaged);
    }
    let now = store.revision().await.unwrap();
    for freshness in [
        Freshness::Newest,
        Freshness::AtLeast(0),
        Freshness::Exactly(now),
    ] {
        let request = ListRequest {
            freshness,
            skip_unreadable: true,
            ..list_request("/a/")
        };
        let listed = store.list(request).await.unwrap();
        assert_eq!((listed.entries.len(), listed.remaining), (1, 0));
        assert_eq!(listed.entries[0].key, "/a/1");
        assert_eq!(listed.unreadable.len(), 1);
        assert_eq!(listed.unreadable[0].key, "/a/2");
    }

    // Another value becomes unreadable while the store runs: watchers have to list again.
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/b/".into(), start).await.unwrap();
    let revision = write(&*other, "/b/1", "!").await;
    let ended = loop {
        match next(&mut watch).await {
            Ok(WatchItem::Progress(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Err(Error::Lagged)), "{ended:?}");
    let freshness = Freshness::AtLeast(revision);
    let all = reads(&*store, &["/a/1", "/b/1", "/b/", "/"], freshness).await;
    let expected = [
        "one",
        "unreadable /b/1",
        "unreadable /b/1",
        "unreadable /a/2 /b/1",
    ];
    assert_eq!(all, expected);

    // What is replaced or deleted can be read again.
    let mut watch = store.watch("/".into(), revision).await.unwrap();
    write(&*other, "/b/1", "mended").await;
    assert_eq!(shown(&next_events(&mut watch).await.1), ["+/b/1=mended"]);
    let deleted = store.commit(vec![delete("/a/2")], Durability::Synced).await;
    assert!(deleted.unwrap().entries[0].is_none());
    let mended = ["one", "", "one", "mended"];
    assert_eq!(reads(&*store, &keys, Freshness::Newest).await, mended);
    let newest = Freshness::AtLeast(store.revision().await.unwrap());
    assert_eq!(reads(&*store, &keys, newest).await, mended);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_forgotten_after_a_while() {
    let cluster = Cluster::start(1);
    let clock = FakeClock::at(jiff::Timestamp::UNIX_EPOCH);
    let config = Config {
        clock: Arc::new(clock.clone()),
        ..everything()
    };
    let store = cluster.connect(config).await;
    let old = write(&*store, "/a", "1").await;
    write(&*store, "/a", "2").await;
    let stop = tokio_util::sync::CancellationToken::new();
    let context = lifecycle::Context::standalone("store", stop.clone());
    let running = tokio::spawn(lifecycle::Service::run(store.clone(), context));
    let deadline = Instant::now() + PATIENCE;
    let key = Bytes::from("/a");
    let is_gone = async |store: &dyn Store<Plain>| {
        let read = store.get(&key, Freshness::Exactly(old)).await;
        matches!(read, Err(Error::Compacted { .. }))
    };
    while !is_gone(&*store).await {
        assert!(Instant::now() < deadline, "the old value is still there");
        clock.advance(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Also for other servers.
    let other = cluster.connect(everything()).await;
    assert!(is_gone(&*other).await);
    assert_eq!(value(&*other, "/a").await.as_deref(), Some("2"));
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_lost_member_of_three_is_not_noticed_by_watches_and_reads() {
    let mut cluster = Cluster::start(3);
    let store = cluster.connect(everything()).await;
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/w/".into(), start).await.unwrap();
    let mut expected = 0;
    for victim in 0..3 {
        for _ in 0..5 {
            write_until_accepted(&store, &format!("/w/{expected}")).await;
            expected += 1;
        }
        cluster.kill(victim);
        for _ in 0..5 {
            write_until_accepted(&store, &format!("/w/{expected}")).await;
            expected += 1;
        }
        assert!(value(&*store, "/w/0").await.is_some(), "reads go on");
        cluster.spawn(victim);
        wait_for_quorum(&store).await;
    }
    let mut seen = 0;
    while seen < expected {
        let (_, events) = next_events(&mut watch).await;
        for event in events {
            assert_eq!(event.key, format!("/w/{seen}"), "in order, each once");
            assert!(event.previous.is_none());
            seen += 1;
        }
    }
}

/// Prints how long writes paused: `--no-capture` shows it.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout)]
async fn a_paused_member_of_three_costs_the_writes_under_way_and_no_others() {
    let cluster = Cluster::start(3);
    let store = cluster.connect(everything()).await;
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/w/".into(), start).await.unwrap();
    let mut expected = 0;
    // Each member once, whether it is the leader, used by the client, or neither.
    for victim in 0..3 {
        write_until_accepted(&store, &format!("/w/{expected}")).await;
        cluster.pause(victim);
        let begun = Instant::now();
        let failed = write_until_accepted(&store, &format!("/w/{}", expected + 1)).await;
        println!(
            "member {victim}: a write after {:?}, {failed} failed",
            begun.elapsed()
        );
        // One at the paused member, and one that a live member forwarded to the paused leader.
        assert!(
            failed <= 2,
            "{failed} writes failed with member {victim} paused"
        );
        for number in expected + 2..expected + 6 {
            let failed = write_until_accepted(&store, &format!("/w/{number}")).await;
            assert_eq!(failed, 0, "a later write failed");
        }
        expected += 6;
        assert!(value(&*store, "/w/0").await.is_some(), "reads go on");
        cluster.resume(victim);
        cluster.wait_for(victim).await;
    }
    let mut seen = 0;
    while seen < expected {
        let (_, events) = next_events(&mut watch).await;
        for event in events {
            assert_eq!(event.key, format!("/w/{seen}"), "in order, each once");
            seen += 1;
        }
    }
}

/// Prints how long writes paused: `--no-capture` shows it.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout)]
async fn writes_go_on_while_the_leader_hangs_and_none_is_applied_twice() {
    let cluster = Cluster::start(3);
    let observer = cluster.connect(everything()).await;
    let mut known = write(&*observer, "/w/updated", "0").await;
    let mut watch = observer.watch("/w/".into(), known).await.unwrap();
    let mut expected = Vec::new();
    for round in 1..=3 {
        let leader = cluster.leader().await;
        // Another member forwards the writes to the leader.
        let store = cluster.connect_via((leader + 1) % 3, everything()).await;
        cluster.pause(leader);
        let begun = Instant::now();
        // An update with a precondition is sent again, since it cannot be applied twice.
        let (value, at) = (round.to_string(), store::Precondition::Revision(known));
        let updated = commit(&*store, vec![put_if("/w/updated", &value, at)]).await;
        known = updated.unwrap().revision;
        println!(
            "member {leader} hangs: an update after {:?}",
            begun.elapsed()
        );
        let created = format!("/w/{round}");
        write_until_accepted(&store, &created).await;
        cluster.resume(leader);
        cluster.wait_for(leader).await;
        // What the resumed member still forwards arrives before what is written through it.
        let resumed = cluster.connect_via(leader, everything()).await;
        let last = format!("/w/{round}-resumed");
        write_until_accepted(&resumed, &last).await;
        expected.extend([format!("~/w/updated={}>{round}", round - 1)]);
        expected.extend([created, last].map(|key| format!("+{key}=x")));
    }
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        seen.extend(shown(&next_events(&mut watch).await.1));
    }
    assert_eq!(seen, expected);
}

/// A write whose response was lost may have been applied: then it is found. Returns how often it
/// failed.
async fn write_until_accepted(store: &Etcd<Plain>, key: &str) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let mut failed = 0;
    loop {
        let written = commit(store, vec![put_if(key, "x", store::Precondition::Absent)]).await;
        match written {
            Ok(_) | Err(Error::Conflict { .. }) => return failed,
            Err(error) if Instant::now() > deadline => panic!("{error}"),
            Err(_) => failed += 1,
        }
        tokio::task::yield_now().await;
    }
}

async fn wait_for_quorum(store: &Etcd<Plain>) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = store.revision().await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_etcd_is_found_again_and_nothing_is_missed() {
    let mut cluster = Cluster::start(1);
    let store = cluster.connect(everything()).await;
    let before = write(&*store, "/a", "1").await;
    let mut watch = store.watch("/".into(), before).await.unwrap();
    cluster.kill(0);
    let cut = commit(&*store, vec![put("/a", "2")]).await;
    assert!(matches!(cut, Err(Error::Unavailable(_))), "{cut:?}");
    let key = Bytes::from("/a");
    let (_, cached) = store.get(&key, Freshness::AtLeast(0)).await.unwrap();
    assert!(cached.is_some(), "old reads go on without etcd");
    cluster.spawn(0);
    wait_for_quorum(&store).await;
    let other = cluster.connect(everything()).await;
    write(&*other, "/b", "1").await;
    assert_eq!(shown(&next_events(&mut watch).await.1), ["+/b=1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_client_certificates_is_spoken_and_required() {
    let (files, tls) = certificates();
    let cluster = Cluster::start_with(1, Some(files));
    let store = cluster
        .connect(Config {
            tls: Some(tls.clone()),
            ..everything()
        })
        .await;
    write(&*store, "/a", "1").await;
    assert_eq!(value(&*store, "/a").await.as_deref(), Some("1"));

    let anonymous = Tls {
        identity: None,
        ..tls
    };
    let refused = Config {
        endpoints: cluster.endpoints(),
        tls: Some(anonymous),
        ..everything()
    };
    assert!(refused.connect(Plain).await.map(drop).is_err());
    let (_, stranger) = certificates();
    let refused = Config {
        endpoints: cluster.endpoints(),
        tls: Some(stranger),
        ..everything()
    };
    let refused = refused.connect(Plain).await.map(drop);
    assert!(
        matches!(&refused, Err(Error::Unavailable(why)) if why.contains("connect")),
        "{refused:?}"
    );
}

/// A new CA with one certificate for etcd and for the client.
fn certificates() -> (TlsFiles, Tls) {
    let mut authority = rcgen::CertificateParams::new([]).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let ca = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf =
        rcgen::CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let certificate = leaf.signed_by(&key, &issuer).unwrap().pem();
    let files = TlsFiles {
        ca: ca.clone(),
        certificate: certificate.clone(),
        key: key.serialize_pem(),
    };
    let tls = Tls {
        ca: ca.into_bytes(),
        identity: Some((certificate.into_bytes(), key.serialize_pem().into_bytes())),
        server_name: None,
    };
    (files, tls)
}

#[tokio::test]
async fn bad_endpoints_are_refused_by_name() {
    for (endpoint, word) in [
        ("https://127.0.0.1:1", "authority"),
        ("http://etcd.example", "a host and a port"),
        ("ftp://127.0.0.1:1", "http"),
    ] {
        let config = Config {
            endpoints: vec![endpoint.into()],
            ..everything()
        };
        let refused = config.connect(Plain).await.map(drop);
        assert!(
            matches!(&refused, Err(Error::Invalid(why)) if why.contains(word) && why.contains(endpoint)),
            "{refused:?}"
        );
    }
    let unreachable = Config {
        endpoints: vec!["http://127.0.0.1:1".into()],
        ..everything()
    };
    let refused: Result<Arc<Etcd<Plain>>, _> = unreachable.connect(Plain).await;
    let Err(Error::Unavailable(why)) = refused.map(drop) else {
        panic!("there is no server")
    };
    assert!(
        why.contains("no member of etcd at http://127.0.0.1:1 answered within 0 s"),
        "{why}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_start_later_are_waited_for() {
    let mut cluster = Cluster::planned(1);
    let clock = FakeClock::at(jiff::Timestamp::UNIX_EPOCH);
    let config = Config {
        endpoints: cluster.endpoints(),
        patience: Duration::from_secs(30),
        clock: Arc::new(clock.clone()),
        ..everything()
    };
    // No member ever: attempts continue for the configured time, and no longer.
    let waiting = tokio::spawn(config.clone().connect(Plain));
    while !waiting.is_finished() {
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    let refused = waiting.await.unwrap().map(drop);
    assert!(
        matches!(&refused, Err(Error::Unavailable(why)) if why.contains("answered within")),
        "{refused:?}"
    );
    let config = Config {
        clock: Arc::new(SystemClock),
        ..config
    };
    let waiting = tokio::spawn(config.connect(Plain));
    cluster.spawn(0);
    let store = waiting.await.unwrap().unwrap();
    assert!(store.revision().await.unwrap() > 0);
}
