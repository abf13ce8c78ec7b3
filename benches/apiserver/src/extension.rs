//! Everything that has a goal in one command: policies beside upstream, rules of a definition, and
//! many definitions.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use crate::{
    definitions, policies, process,
    report::{self, Figures, Run},
    scenario,
    serve::Own,
    upstream::Upstream,
    validate,
};

#[derive(Debug, Clone, Args)]
pub(crate) struct Extension {
    /// Upstream's kube-apiserver to compare with.
    #[arg(long)]
    upstream: Option<PathBuf>,
    /// The etcd for it.
    #[arg(long, default_value = "etcd")]
    etcd: PathBuf,
    /// The directory for the data of both.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    data: PathBuf,
    /// How long each measurement lasts, in seconds.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The numbers of concurrent connections, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    connections: Vec<usize>,
    /// The number of definitions.
    #[arg(long, default_value_t = 1000)]
    definitions: usize,
}

impl Extension {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let policies = self.policies()?;
        let rules = validate::measure()?;
        let own = Own::start(&self.data)?;
        let served = definitions::run(&own.peer, self.definitions)?;
        drop(own);
        println!("\n{:<58} {:>12} {:>12}", "what", "figure", "goal");
        let line = |what: &str, figure: String, goal: &str| {
            println!("{what:<58} {figure:>12} {goal:>12}");
        };
        for (connections, times) in policies {
            let what =
                format!("creates with 10 policies, {connections} connections, \u{d7} upstream");
            line(&what, format!("{times:.1}"), "10");
        }
        line(
            "validation of an object with 50 rules, \u{b5}s",
            format!("{rules:.1}"),
            "100",
        );
        for (when, kilobytes) in &served.kilobytes {
            let what = format!("memory of a definition {when}, KB");
            line(&what, format!("{kilobytes:.1}"), "50");
        }
        for figures in &served.documents {
            let milliseconds = figures.median.as_secs_f64() * 1e3;
            let goal = match figures.what.ends_with("again") {
                true => "milliseconds",
                false => "",
            };
            line(
                &format!("{}, ms", figures.what),
                format!("{milliseconds:.2}"),
                goal,
            );
        }
        Ok(())
    }

    /// The ratio of creates with policies, by the number of connections. Without upstream there is
    /// none, and only our own figures are printed.
    fn policies(&self) -> anyhow::Result<Vec<(usize, f64)>> {
        let lasts = Duration::from_secs_f64(self.seconds);
        let own = Own::start(&self.data)?;
        let start = |program: &PathBuf| Upstream::start(program, &self.etcd, &self.data);
        let upstream = self.upstream.as_ref().map(start).transpose()?;
        let mut peers = vec![own.peer.clone()];
        peers.extend(upstream.iter().map(|upstream| upstream.peer.clone()));
        let mut runs = Vec::new();
        for peer in &peers {
            scenario::prepare(peer)?;
            runs.push(Run {
                name: peer.name,
                ..Run::default()
            });
        }
        let mut take = |what: &dyn Fn(&crate::peer::Peer) -> anyhow::Result<Figures>| {
            for (peer, run) in peers.iter().zip(&mut runs) {
                run.table.push(what(peer)?);
            }
            anyhow::Ok(())
        };
        for count in &self.connections {
            take(&|peer| policies::create_maps(peer, *count, lasts))?;
        }
        for count in &self.connections {
            take(&|peer| policies::create_ruled(peer, *count, lasts))?;
            take(&|peer| scenario::create_maps(peer, *count, lasts))?;
            take(&|peer| policies::create_unmatched(peer, *count, lasts))?;
        }
        for (peer, run) in peers.iter().zip(&mut runs) {
            run.memory.extend(
                process::memory(&peer.processes).map(|megabytes| ("at the end", megabytes)),
            );
            run.print();
        }
        let [ours, theirs] = runs.as_slice() else {
            return Ok(Vec::new());
        };
        report::compare(ours, theirs);
        let pairs = ours.table.iter().zip(&theirs.table);
        let ratios = pairs.map(|(ours, theirs)| (ours.connections, ours.rate / theirs.rate));
        Ok(ratios.take(self.connections.len()).collect())
    }
}
