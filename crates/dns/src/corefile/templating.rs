//! The directive `template`.

use std::str::FromStr;

use hickory_proto::{
    op::ResponseCode,
    rr::{Name, RecordType},
};

use super::{
    Server,
    directive::{Reading, names, wrong},
    rewriting::pattern,
    syntax::SyntaxError,
};
use crate::template::{RecordTemplate, Template};

/// Parses `template CLASS TYPE [ZONE…] { … }`. A template with a part that is not supported has no effect.
pub(super) fn template(server: &mut Server, reading: &mut Reading<'_>) -> Result<(), SyntaxError> {
    let line = reading.line;
    let [class, kind, zones @ ..] = reading.arguments() else {
        return Err(wrong(line, "expected template CLASS TYPE [ZONE…]"));
    };
    let kind = RecordType::from_str(&kind.to_uppercase());
    let mut read = Template {
        kind: kind.map_err(|_| wrong(line, "unknown type"))?,
        zones: match zones {
            [] => server.zones.clone(),
            zones => names(line, zones)?,
        },
        code: ResponseCode::NoError,
        patterns: Vec::new(),
        answers: Vec::new(),
        additionals: Vec::new(),
        authorities: Vec::new(),
        fallthrough: Vec::new(),
    };
    let mut is_understood = ["IN", "ANY"].contains(&class.to_uppercase().as_str());
    for option in reading.options() {
        let words: Vec<&str> = option.words.iter().map(String::as_str).collect();
        let (section, text) = match words.as_slice() {
            ["rcode", code] => {
                let code = response_code(code);
                read.code = code.ok_or_else(|| wrong(option, "unknown response code"))?;
                continue;
            }
            ["match", patterns @ ..] => {
                for text in patterns {
                    read.patterns.push(pattern(option, text)?);
                }
                continue;
            }
            ["fallthrough"] => {
                read.fallthrough.push(Name::root());
                continue;
            }
            ["fallthrough", ..] => {
                read.fallthrough.extend(names(option, &option.words[1..])?);
                continue;
            }
            ["answer", text] => (&mut read.answers, text),
            ["additional", text] => (&mut read.additionals, text),
            ["authority", text] => (&mut read.authorities, text),
            _ => {
                reading.no_option(option);
                is_understood = false;
                continue;
            }
        };
        match RecordTemplate::parse(text) {
            Ok(record) => section.push(record),
            Err(error) => {
                reading.problem(option, format!("template: {error}"));
                is_understood = false;
            }
        }
    }
    match is_understood {
        true => server.templates.push(read),
        false => reading.problem(
            line,
            "template: a part of it is not supported, the template is left out",
        ),
    }
    Ok(())
}

fn response_code(name: &str) -> Option<ResponseCode> {
    Some(match name.to_uppercase().as_str() {
        "NOERROR" => ResponseCode::NoError,
        "NXDOMAIN" => ResponseCode::NXDomain,
        "SERVFAIL" => ResponseCode::ServFail,
        "REFUSED" => ResponseCode::Refused,
        "NOTIMP" => ResponseCode::NotImp,
        "FORMERR" => ResponseCode::FormErr,
        _ => return None,
    })
}
