//! The caller of a request: a component of this process, or a client connection.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use auth::authn::Credentials;
use http::{HeaderMap, Response, header};
use http_server::{Handler, Sender};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use request::RequestBody;
use rustls::pki_types::CertificateDer;
use server_metrics::Recent;

use super::Pipeline;
use crate::{Body, User, admission::Peer, write::Fence};

/// How long a verified certificate is trusted on its connection. A certificate may expire while a connection lasts, but
/// verifying it costs more than many a request.
const VERIFIED_FOR: SignedDuration = SignedDuration::from_secs(10);

/// The caller of a request.
pub(crate) enum Caller {
    /// A component of this process.
    Known(LocalCaller),
    /// A client, authenticated by its connection or its headers.
    Connection(Arc<Connection>),
}

/// A component of this process.
#[derive(Clone)]
pub(crate) struct LocalCaller {
    pub(crate) user: Arc<User>,
    /// The address of its node, if it is a kubelet.
    pub(crate) node_address: Option<IpAddr>,
    /// The lease fence of its writes, if it is a leader.
    pub(crate) fence: Option<Arc<Fence>>,
}

impl Caller {
    /// The lease fence of the caller's writes.
    pub(super) fn fence(&self) -> Option<Arc<Fence>> {
        match self {
            Self::Known(known) => known.fence.clone(),
            Self::Connection(_) => None,
        }
    }

    /// The user's address, as far as the server can vouch for it: the peer of a connection that is
    /// authenticated by the user's own certificate, or this process.
    pub(super) fn peer(&self, headers: &HeaderMap) -> Option<Peer> {
        match self {
            Self::Known(known) => known.node_address.map(Peer::InProcess),
            Self::Connection(connection) => {
                let certified = shows_certificate_alone(&connection.credentials(headers));
                certified.then(|| Peer::Certified(connection.remote.ip().to_canonical()))
            }
        }
    }
}

/// A connection after its TLS handshake.
pub(crate) struct Connection {
    pub(crate) remote: SocketAddr,
    pub(crate) certificates: Vec<CertificateDer<'static>>,
    /// Guards the certificate's user, and when it was verified.
    verified: Mutex<Option<(Timestamp, Arc<User>)>>,
    /// The receive limits of its peer.
    pub(crate) sender: Arc<Sender>,
    /// The metrics that the connection used last.
    pub(super) counted: Recent,
}

impl Handler for Pipeline {
    type Connection = Connection;

    fn connected(
        &self,
        remote: SocketAddr,
        certificates: Vec<CertificateDer<'static>>,
        sender: Arc<Sender>,
    ) -> Connection {
        Connection {
            remote,
            certificates,
            verified: Mutex::default(),
            sender,
            counted: Recent::default(),
        }
    }

    async fn respond(
        self: Arc<Self>,
        request: http::Request<Option<RequestBody>>,
        connection: Arc<Connection>,
    ) -> Response<Body> {
        self.handle(request, Caller::Connection(connection)).await
    }
}

impl Connection {
    /// The credentials of a request on this connection.
    pub(super) fn credentials<'a>(&'a self, headers: &'a HeaderMap) -> Credentials<'a> {
        Credentials {
            headers,
            certificates: &self.certificates,
            remote: Some(self.remote),
        }
    }

    /// The certificate's user, if it was verified recently.
    pub(super) fn verified_user(&self, now: Timestamp) -> Option<Arc<User>> {
        let verified = self.verified.lock();
        let (at, user) = verified.as_ref()?;
        let age = now.duration_since(*at);
        (!age.is_negative() && age < VERIFIED_FOR).then(|| user.clone())
    }

    /// Caches the user of the verified certificate.
    pub(super) fn remember(&self, now: Timestamp, user: Arc<User>) {
        *self.verified.lock() = Some((now, user));
    }
}

/// Whether the connection's certificate is the only credential.
pub(super) fn shows_certificate_alone(credentials: &Credentials<'_>) -> bool {
    let headers = [
        header::AUTHORIZATION.as_str(),
        header::SEC_WEBSOCKET_PROTOCOL.as_str(),
        "x-remote-user",
    ];
    !credentials.certificates.is_empty()
        && !headers
            .iter()
            .any(|name| credentials.headers.contains_key(*name))
}
