//! The behaviour that every backend must have: each check runs on each of them, in a new store.

use std::time::Duration;

use bytes::Bytes;
use store::{Action, Durability, Error, Freshness, Op, Precondition, WatchItem};

use super::*;

pub(crate) async fn all(store: &Dyn) {
    commits_are_atomic_and_conditional(store).await;
    a_commit_that_changes_nothing_takes_no_revision(store).await;
    lists_are_paged_at_one_revision(store).await;
    reads_say_how_fresh_they_are(store).await;
    watches_resume_without_gap_or_split(store).await;
    bad_input_is_refused_by_name(store).await;
    keys_go_when_their_time_has_come(store).await;
    compaction_moves_the_floor(store).await;
}

async fn commits_are_atomic_and_conditional(store: &Dyn) {
    let created = commit(store, vec![put_if("/c/a", "1", Precondition::Absent)])
        .await
        .unwrap();
    let entry = created.entries[0].as_ref().unwrap();
    assert_eq!(entry.create_revision, created.revision);
    assert_eq!(entry.mod_revision, created.revision);

    let again = commit(store, vec![put_if("/c/a", "2", Precondition::Absent)]).await;
    assert!(
        matches!(&again, Err(Error::Conflict { key, current })
            if key == "/c/a" && *current == Some(created.revision)),
        "{again:?}"
    );
    let missing = vec![
        put("/c/b", "1"),
        delete_if("/c/missing", Precondition::Exists),
    ];
    let missing = commit(store, missing).await;
    assert!(
        matches!(&missing, Err(Error::Conflict { key, current: None }) if key == "/c/missing"),
        "{missing:?}"
    );
    assert_eq!(
        value(store, "/c/b").await,
        None,
        "nothing of a refused commit is there"
    );

    let both = vec![
        put_if("/c/a", "3", Precondition::Revision(created.revision)),
        put("/c/b", "3"),
        check_if("/c/none", Precondition::Absent),
    ];
    let both = commit(store, both).await.unwrap();
    let found = both
        .entries
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.mod_revision));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [Some(both.revision), Some(both.revision), None]
    );
    assert_eq!(
        both.entries[0].as_ref().unwrap().create_revision,
        created.revision
    );

    let stale = vec![delete_if("/c/a", Precondition::Revision(created.revision))];
    assert!(matches!(
        commit(store, stale).await,
        Err(Error::Conflict { .. })
    ));
    let deleted = commit(store, vec![delete("/c/a"), delete("/c/gone")])
        .await
        .unwrap();
    assert_eq!(deleted.entries[0].as_ref().unwrap().object[..], *b"3");
    assert!(deleted.entries[1].is_none());
    assert!(deleted.revision > both.revision);
    assert_eq!(value(store, "/c/a").await, None);
}

async fn a_commit_that_changes_nothing_takes_no_revision(store: &Dyn) {
    let before = write(store, "/n/a", "1").await;
    let nothing = vec![
        delete("/n/none"),
        check_if("/n/a", Precondition::Revision(before)),
    ];
    let committed = commit(store, nothing).await.unwrap();
    assert_eq!(committed.revision, before);
    assert_eq!(store.revision().await.unwrap(), before);
}

async fn lists_are_paged_at_one_revision(store: &Dyn) {
    for n in 0..10 {
        write(store, &format!("/l/{n}"), "old").await;
    }
    write(store, "/l0", "outside the prefix").await;
    let first = ListRequest {
        limit: Some(4),
        ..list_request("/l/")
    };
    let first = store.list(first).await.unwrap();
    assert_eq!((first.entries.len(), first.remaining), (4, 6));
    commit(
        store,
        vec![put("/l/5", "new"), delete("/l/6"), put("/l/77", "new")],
    )
    .await
    .unwrap();

    let rest = ListRequest {
        from: Some("/l/4".into()),
        freshness: Freshness::Exactly(first.revision),
        ..list_request("/l/")
    };
    let rest = store.list(rest).await.unwrap();
    assert_eq!((rest.revision, rest.remaining), (first.revision, 0));
    let keys: Vec<_> = rest.entries.iter().map(|entry| entry.key.clone()).collect();
    assert_eq!(keys, ["/l/4", "/l/5", "/l/6", "/l/7", "/l/8", "/l/9"]);
    assert!(rest.entries.iter().all(|entry| entry.object[..] == *b"old"));
    assert_eq!(
        store.list(list_request("/l/")).await.unwrap().entries.len(),
        10
    );
    let none = ListRequest {
        from: Some("/m".into()),
        ..list_request("/l/")
    };
    assert!(store.list(none).await.unwrap().entries.is_empty());
}

async fn reads_say_how_fresh_they_are(store: &Dyn) {
    let key = Bytes::from_static(b"/f/a");
    let first = write(store, "/f/a", "1").await;
    let second = write(store, "/f/a", "2").await;
    let (revision, entry) = store.get(&key, Freshness::AtLeast(second)).await.unwrap();
    assert!(revision >= second);
    assert_eq!(entry.unwrap().object[..], *b"2");
    let (revision, entry) = store.get(&key, Freshness::Exactly(first)).await.unwrap();
    assert_eq!(
        (revision, entry.unwrap().object.as_ref()),
        (first, &Bytes::from("1"))
    );
    let (_, entry) = store
        .get(&key, Freshness::Exactly(first - 1))
        .await
        .unwrap();
    assert!(entry.is_none());
    for freshness in [
        Freshness::Exactly(second + 100),
        Freshness::AtLeast(second + 100),
    ] {
        let future = store.get(&key, freshness).await;
        assert!(matches!(future, Err(Error::Future { .. })), "{future:?}");
    }
}

async fn watches_resume_without_gap_or_split(store: &Dyn) {
    let start = store.revision().await.unwrap();
    let mut live = store.watch("/w/".into(), start).await.unwrap();
    write(store, "/w/a", "1").await;
    commit(
        store,
        vec![put("/w/a", "2"), put("/other", "x"), put("/w/b", "1")],
    )
    .await
    .unwrap();
    commit(store, vec![delete("/w/a"), put("/w/b", "2")])
        .await
        .unwrap();
    let expected: [&[&str]; 3] = [
        &["+/w/a=1"],
        &["~/w/a=1>2", "+/w/b=1"],
        &["-/w/a=2", "~/w/b=1>2"],
    ];
    let mut revisions = vec![start];
    for expected in expected {
        let (revision, events) = next_events(&mut live).await;
        assert_eq!(sorted(&events), sorted_text(expected));
        assert!(events.iter().all(|event| event.revision == revision));
        revisions.push(revision);
    }
    for from in 0..3 {
        let mut resumed = store.watch("/w/".into(), revisions[from]).await.unwrap();
        for expected in &expected[from..] {
            assert_eq!(
                sorted(&next_events(&mut resumed).await.1),
                sorted_text(expected)
            );
        }
    }
    let newest = store.revision().await.unwrap();
    let future = store.watch("/w/".into(), newest + 100).await.map(drop);
    assert!(matches!(future, Err(Error::Future { .. })), "{future:?}");
}

/// etcd orders the events of one revision differently.
fn sorted(events: &[Event<Bytes>]) -> Vec<String> {
    let mut shown = shown(events);
    shown.sort();
    shown
}

fn sorted_text(expected: &[&str]) -> Vec<String> {
    let mut expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    expected.sort();
    expected
}

async fn bad_input_is_refused_by_name(store: &Dyn) {
    let before = store.revision().await.unwrap();
    let large = "x".repeat((1536 << 10) + 1);
    let cases = [
        (vec![], "operation"),
        (vec![put("", "x")], "empty"),
        (vec![put("/a\0b", "x")], "NUL"),
        (vec![put("/big", &large)], "1572865"),
        (vec![put("/twice", "1"), delete("/twice")], "twice"),
    ];
    for (ops, word) in cases {
        let refused = commit(store, ops).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(message)) if message.contains(word)),
            "{word}: {refused:?}"
        );
    }
    let empty = store.get(&Bytes::new(), Freshness::Newest).await;
    assert!(matches!(empty, Err(Error::Invalid(_))), "{empty:?}");
    assert_eq!(
        store.revision().await.unwrap(),
        before,
        "nothing was changed"
    );
}

async fn keys_go_when_their_time_has_come(store: &Dyn) {
    let start = store.revision().await.unwrap();
    let mut watch = store.watch("/e/".into(), start).await.unwrap();
    let expires_in = Some(Duration::from_secs(1));
    let action = Action::Put {
        draft: Bytes::from("soon gone"),
        expires_in,
    };
    let op = Op {
        key: "/e/a".into(),
        precondition: Precondition::Any,
        action,
    };
    store
        .commit(vec![op, put("/e/b", "stays")], Durability::Relaxed)
        .await
        .unwrap();
    next_events(&mut watch).await;
    assert_eq!(shown(&next_events(&mut watch).await.1), ["-/e/a=soon gone"]);
    assert_eq!(value(store, "/e/b").await.as_deref(), Some("stays"));
}

async fn compaction_moves_the_floor(store: &Dyn) {
    let first = write(store, "/p/a", "1").await;
    let second = write(store, "/p/a", "2").await;
    let third = write(store, "/p/a", "3").await;
    store.compact(second).await.unwrap();
    let key = Bytes::from_static(b"/p/a");
    let past = store.get(&key, Freshness::Exactly(first)).await;
    assert!(matches!(past, Err(Error::Compacted { .. })), "{past:?}");
    let mut watch = match store.watch("/p/".into(), first).await {
        Ok(mut watch) => {
            let end = loop {
                match next(&mut watch).await {
                    Ok(WatchItem::Progress(_)) => {}
                    other => break other,
                }
            };
            assert!(matches!(end, Err(Error::Compacted { .. })), "{end:?}");
            store.watch("/p/".into(), second).await.unwrap()
        }
        Err(error) => {
            assert!(matches!(error, Error::Compacted { .. }), "{error:?}");
            store.watch("/p/".into(), second).await.unwrap()
        }
    };
    assert_eq!(next_events(&mut watch).await.0, third);
    let future = store.compact(third + 100).await;
    assert!(matches!(future, Err(Error::Future { .. })), "{future:?}");
}
