//! `/statusz` and `/flagz`: the kubelet's version, paths and flags. The flags are those of the process, which may
//! run other components, too.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use machinery::Status;
use request::zpages::{self, Page, Process};

use super::{Body, whole};
use crate::core::Core;

const COMPONENT: &str = "kubelet";

/// The paths that this server handles.
const PATHS: &[&str] = &[
    "/attach",
    "/checkpoint",
    "/configz",
    "/containerLogs",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/stats",
    "/statusz",
];

pub(super) fn statusz(core: &Core, headers: &HeaderMap) -> Response<Body> {
    let paths: Vec<String> = PATHS.iter().map(|path| (*path).to_owned()).collect();
    answer(zpages::statusz(COMPONENT, &process(core), &paths, headers))
}

pub(super) fn flagz(core: &Core, headers: &HeaderMap) -> Response<Body> {
    answer(zpages::flagz(COMPONENT, &process(core), headers))
}

fn process(core: &Core) -> Process {
    let own = stdx::Version::own();
    let version = format!("{}.{}.{}", own.major, own.minor, own.patch);
    Process::own(core.now().as_second(), version)
}

fn answer(page: Result<Page, Status>) -> Response<Body> {
    match page {
        Ok(page) => {
            let mut response = whole(StatusCode::OK, page.media, page.body.into_bytes());
            if let Some(warning) = page.warning {
                let warning = HeaderValue::from_static(warning);
                response.headers_mut().insert(header::WARNING, warning);
            }
            response
        }
        Err(status) => {
            let code = StatusCode::from_u16(status.code);
            let code = code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            whole(code, "application/json", status.to_bytes())
        }
    }
}
