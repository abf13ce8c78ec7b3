//! Debian's etcd as a subject: one member on loopback, used directly, without our cache.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use store::etcd::proto::etcdserverpb::{
    PutRequest, RangeRequest, WatchCreateRequest, WatchRequest, kv_client::KvClient,
    watch_client::WatchClient, watch_request::RequestUnion,
};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use crate::load::{self, Subject};

/// The number of connections that the writers share.
const CONNECTIONS: usize = 16;

pub(crate) struct Etcd {
    process: Child,
    channels: Vec<Channel>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Etcd {
    pub(crate) async fn start(directory: &Path) -> anyhow::Result<Self> {
        let free = || {
            anyhow::Ok(
                TcpListener::bind(("127.0.0.1", 0))?
                    .local_addr()?
                    .to_string(),
            )
        };
        let client = format!("http://{}", free()?);
        let peer = format!("http://{}", free()?);
        let process = Command::new("etcd")
            .arg("--data-dir")
            .arg(directory)
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args([
                "--initial-cluster",
                &format!("default={peer}"),
                "--log-level",
                "error",
            ])
            .args(["--quota-backend-bytes", "8589934592"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut etcd = Self {
            process,
            channels: Vec::new(),
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while etcd.channels.len() < CONNECTIONS {
            match Endpoint::from_shared(client.clone())?.connect().await {
                Ok(channel) => etcd.channels.push(channel),
                Err(error) => anyhow::ensure!(Instant::now() < deadline, "etcd: {error}"),
            }
        }
        Ok(etcd)
    }

    fn channel(&self, writer: usize) -> Channel {
        self.channels[writer % CONNECTIONS].clone()
    }
}

impl Subject for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    async fn put(&self, writer: usize, key: Bytes, value: Bytes) -> anyhow::Result<()> {
        let request = PutRequest {
            key,
            value,
            ..PutRequest::default()
        };
        KvClient::new(self.channel(writer)).put(request).await?;
        Ok(())
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        from: Option<String>,
        limit: Option<usize>,
    ) -> BoxFuture<'a, anyhow::Result<(usize, String)>> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let request = RangeRequest {
            key: from.unwrap_or_else(|| prefix.to_owned()).into(),
            range_end: end.into(),
            limit: limit.unwrap_or(0) as i64,
            ..RangeRequest::default()
        };
        async move {
            let mut client = KvClient::new(self.channel(0)).max_decoding_message_size(usize::MAX);
            let answer = client.range(request).await?.into_inner();
            let last = answer
                .kvs
                .last()
                .map(|kv| kv.key.to_vec())
                .unwrap_or_default();
            Ok((answer.kvs.len(), String::from_utf8(last)?))
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        prefix: &'a str,
        watchers: usize,
        seen: Arc<AtomicU64>,
    ) -> BoxFuture<'a, anyhow::Result<JoinSet<()>>> {
        async move {
            let mut tasks = JoinSet::new();
            let mut end = prefix.as_bytes().to_vec();
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            let created = Arc::new(AtomicU64::new(0));
            for connection in 0..CONNECTIONS {
                let count =
                    watchers / CONNECTIONS + usize::from(connection < watchers % CONNECTIONS);
                let create = WatchCreateRequest {
                    key: Bytes::copy_from_slice(prefix.as_bytes()),
                    range_end: end.clone().into(),
                    ..WatchCreateRequest::default()
                };
                let (requests, receiver) = tokio::sync::mpsc::channel(16);
                let mut client = WatchClient::new(self.channel(connection))
                    .max_decoding_message_size(usize::MAX);
                let (seen, created) = (seen.clone(), created.clone());
                tasks.spawn(async move {
                    let ask = async {
                        for _ in 0..count {
                            let union = Some(RequestUnion::CreateRequest(create.clone()));
                            let _ = requests
                                .send(WatchRequest {
                                    request_union: union,
                                })
                                .await;
                        }
                        std::future::pending::<()>().await;
                    };
                    let hear = async {
                        let Ok(answers) = client.watch(ReceiverStream::new(receiver)).await else {
                            return;
                        };
                        let mut answers = answers.into_inner();
                        while let Ok(Some(answer)) = answers.message().await {
                            created.fetch_add(u64::from(answer.created), Ordering::Relaxed);
                            seen.fetch_add(answer.events.len() as u64, Ordering::Relaxed);
                        }
                    };
                    tokio::join!(ask, hear);
                });
            }
            while created.load(Ordering::Relaxed) < watchers as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(tasks)
        }
        .boxed()
    }

    fn memory(&self) -> anyhow::Result<u64> {
        load::resident(&self.process.id().to_string())
    }

    fn processor(&self) -> anyhow::Result<Duration> {
        let etcd = load::processor(&self.process.id().to_string())?;
        Ok(etcd + load::processor("self")?)
    }
}
