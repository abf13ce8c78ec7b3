//! `mainstay token`: bootstrap tokens.

use anyhow::{Context, Result, bail};
use cluster::{
    Options, agent,
    tokens::{self, NewToken, TokenInfo},
};
use jiff::SignedDuration;

use crate::cli::{Cluster, Token};

/// Runs a token command as the administrator of the cluster in the data directory.
pub(super) fn run(command: Token) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match command {
            Token::Create {
                token,
                ttl,
                description,
                usages,
                groups,
                cluster,
            } => {
                let token = match token {
                    None => agent::Token::random(),
                    Some(text) => agent::Token::parse(&text).with_context(|| {
                        format!("{text:?} is not of the form abcdef.0123456789abcdef")
                    })?,
                };
                let new = NewToken {
                    token,
                    ttl: lifetime(&ttl)?,
                    description,
                    usages,
                    groups,
                };
                create(&cluster, &new).await
            }
            Token::Server { rotate, cluster } => {
                let data_dir = data_dir(&cluster)?;
                match rotate {
                    true => cluster::backup::rotate_server_token(&data_dir).await?,
                    false => cluster::backup::refresh_server_token(&data_dir).await?,
                }
                let token = cluster::founding::ServerToken::read(&data_dir)?;
                let missing = || {
                    let place = data_dir.display();
                    format!("{place} does not belong to a server with --store etcd")
                };
                println!("{}", token.with_context(missing)?.reveal());
                Ok(())
            }
            Token::List { cluster } => {
                print!(
                    "{}",
                    table(&tokens::list(&connect(&cluster)?.client(None)?).await?)
                );
                Ok(())
            }
            Token::Delete { tokens, cluster } => {
                let client = connect(&cluster)?.client(None)?;
                for token in tokens {
                    tokens::delete(&client, &token).await?;
                    println!("deleted {}", token.split('.').next().unwrap_or_default());
                }
                Ok(())
            }
        }
    })
}

fn data_dir(cluster: &Cluster) -> Result<std::path::PathBuf> {
    let options = Options {
        data_dir: cluster.data_dir.clone(),
        ..Options::default()
    };
    Ok(cluster::settings::data_dir(&options)?)
}

fn connect(cluster: &Cluster) -> Result<client::Kubeconfig> {
    let path = data_dir(cluster)?.join("admin.kubeconfig");
    let config = client::Kubeconfig::read(&path);
    config.context("tokens are made on a server of the cluster, with its data directory")
}

/// Creates the token and prints the command for the joining machine, on one line.
async fn create(cluster: &Cluster, new: &NewToken) -> Result<()> {
    let config = connect(cluster)?;
    let (_, place, _) = config.resolve(None)?;
    let authority = config
        .authority(place)?
        .context("the kubeconfig has no CA certificate")?;
    tokens::create(&config.client(None)?, new).await?;
    // Every CA of a bundle must be pinned.
    let pins = pki::public_key_hashes(&authority)?.join(" --ca-hash ");
    println!(
        "mainstay agent --server {} --token {} --ca-hash {pins}",
        place.server,
        new.token.reveal(),
    );
    Ok(())
}

/// `24h`, `1h30m`, `90s`; 0 is for ever.
fn lifetime(text: &str) -> Result<Option<SignedDuration>> {
    if text == "0" {
        return Ok(None);
    }
    let duration: SignedDuration = text
        .parse()
        .with_context(|| format!("--ttl: {text:?} is not a duration such as 24h or 30m"))?;
    if duration.is_zero() {
        return Ok(None);
    }
    if duration.is_negative() {
        bail!("--ttl: {text:?} is not positive");
    }
    Ok(Some(duration))
}

fn table(tokens: &[TokenInfo]) -> String {
    let mut rows = vec![["TOKEN", "EXPIRES", "USAGES", "GROUPS", "DESCRIPTION"].map(str::to_owned)];
    rows.extend(tokens.iter().map(|token| {
        [
            token.id.clone(),
            token.expires.clone().unwrap_or_else(|| "<never>".into()),
            token.usages.join(","),
            token.groups.clone(),
            token.description.clone(),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..5)
        .map(|column| width(column).unwrap_or_default())
        .collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("   ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_a_duration_or_for_ever() {
        assert_eq!(
            lifetime("24h").unwrap(),
            Some(SignedDuration::from_hours(24))
        );
        assert_eq!(
            lifetime("1h30m").unwrap(),
            Some(SignedDuration::from_mins(90))
        );
        assert_eq!(lifetime("0").unwrap(), None);
        assert_eq!(lifetime("0s").unwrap(), None);
        assert!(lifetime("-1h").is_err() && lifetime("soon").is_err());
    }

    #[test]
    fn tokens_are_shown_without_their_secrets() {
        let known = TokenInfo {
            id: "abcdef".into(),
            expires: None,
            usages: vec!["signing".into()],
            groups: "g".into(),
            description: String::new(),
        };
        let shown = table(&[known]);
        let mut lines = shown.lines();
        assert!(lines.next().unwrap().starts_with("TOKEN    EXPIRES"));
        assert_eq!(lines.next(), Some("abcdef   <never>   signing   g"));
    }
}
