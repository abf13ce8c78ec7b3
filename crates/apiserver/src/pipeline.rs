//! The stages of every request, each in a file of its own.
//!
//! A request passes [`http_rules`], [`arrival`], [`panic_guard`], [`deadline`], [`authenticate`],
//! [`audit`], [`impersonate`], [`flow_control`], [`authorize`] and [`dispatch`], which hands it to
//! the handler of its verb. The answer passes [`RESPONSE_STAGES`]. The [`Exchange`] carries what
//! the response stages need of the request. Requests from the socket and from this process differ
//! only in their [`Caller`].

mod about;
mod arrival;
mod audit;
mod authenticate;
mod authorize;
mod caller;
mod compress;
mod count;
mod deadline;
mod deprecation;
mod dispatch;
mod flow_control;
mod headers;
mod http_rules;
mod impersonate;
mod indent;
mod pace;
mod panic_guard;
mod shared;

use std::sync::Arc;

use http::{Method, Response};
use request::RequestBody;

use self::{
    arrival::{Arrival, Exchange},
    panic_guard::PanicGuard,
};
use crate::{
    Body,
    respond::{self, Answer},
};

pub(crate) use self::{
    caller::{Caller, Connection, LocalCaller},
    dispatch::Request,
    shared::Pipeline,
};

/// The stages that every response passes, in this order.
const RESPONSE_STAGES: [fn(&mut Exchange, &mut Response<Body>); 8] = [
    audit::record_response,
    deprecation::warn,
    authenticate::warn_of_ignored_token,
    count::answered,
    headers::complete,
    indent::stage,
    compress::stage,
    pace::limit,
];

impl Pipeline {
    /// Answers one request.
    pub(crate) async fn handle(
        self: Arc<Self>,
        request: http::Request<Option<RequestBody>>,
        caller: Caller,
    ) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let response = self.exchange(request, caller).await;
        match is_head {
            true => respond::without_body(response),
            false => response,
        }
    }

    async fn exchange(
        self: Arc<Self>,
        request: http::Request<Option<RequestBody>>,
        caller: Caller,
    ) -> Response<Body> {
        let (parts, body) = request.into_parts();
        if let Some(refused) = http_rules::refuse(&parts, &caller) {
            return refused;
        }
        let (arrival, mut exchange) = arrival::read(self, parts, caller);
        let guard = PanicGuard::new(&arrival);
        let answer = guard.run(serve(arrival, body, &mut exchange)).await;
        let answer = answer.unwrap_or_else(|panic| panic.answer(&mut exchange));
        let mut response = answer.unwrap_or_else(|status| exchange.refuse(status));
        for stage in RESPONSE_STAGES {
            stage(&mut exchange, &mut response);
        }
        response
    }
}

/// The stages up to the handler.
async fn serve(mut arrival: Arrival, body: Option<RequestBody>, exchange: &mut Exchange) -> Answer {
    let deadline = deadline::of_request(
        exchange.pipeline.shared.config.limits.deadline,
        &arrival.query,
    )?;
    let mut user = authenticate::authenticate(&arrival, exchange).await?;
    audit::begin(&arrival, &user, exchange);
    impersonate::apply(&mut arrival, &mut user, exchange).await?;
    let seat = match flow_control::seat(&arrival, &user, deadline, exchange).await {
        Ok(seat) => seat,
        Err(too_many_requests) => return Ok(too_many_requests),
    };
    authorize::authorize(&arrival, &user, exchange).await?;
    dispatch::dispatch(arrival, body, user, seat, deadline, exchange).await
}
