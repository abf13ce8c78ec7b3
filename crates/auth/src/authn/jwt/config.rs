//! The `AuthenticationConfiguration` in the file of `--authentication-config`: the issuers whose tokens are accepted,
//! and the paths that permit anonymous requests. The whole file is validated before any of it is used.

use std::collections::BTreeSet;

use http::Uri;
use machinery::field::{Error, Errors, Path};
use machinery::format;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde::Deserialize;

use super::claims::{Expression, ExpressionUse};

/// The accepted API versions; all have the same fields.
const VERSIONS: &[&str] = &[
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const ISSUERS_MAX: usize = 64;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct AuthenticationConfiguration {
    api_version: String,
    kind: String,
    pub(super) jwt: Vec<IssuerConfig>,
    pub(super) anonymous: Option<Anonymous>,
}

/// An issuer of tokens, and how the claims of its tokens map to users.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct IssuerConfig {
    pub(super) issuer: Issuer,
    pub(super) claim_validation_rules: Vec<ClaimRule>,
    pub(super) claim_mappings: Mappings,
    pub(super) user_validation_rules: Vec<UserRule>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Issuer {
    pub(super) url: String,
    #[serde(rename = "discoveryURL")]
    pub(super) discovery_url: String,
    pub(super) certificate_authority: String,
    pub(super) audiences: Vec<String>,
    audience_match_policy: String,
    egress_selector_type: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClaimRule {
    pub(super) claim: String,
    pub(super) required_value: String,
    pub(super) expression: String,
    pub(super) message: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Mappings {
    pub(super) username: Mapping,
    pub(super) groups: Mapping,
    pub(super) uid: ClaimOrExpression,
    pub(super) extra: Vec<Extra>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Mapping {
    pub(super) claim: String,
    pub(super) prefix: Option<String>,
    pub(super) expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClaimOrExpression {
    pub(super) claim: String,
    pub(super) expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Extra {
    pub(super) key: String,
    pub(super) value_expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct UserRule {
    pub(super) expression: String,
    pub(super) message: String,
}

/// Whether requests without credentials are accepted, and for which paths.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Anonymous {
    enabled: bool,
    conditions: Vec<AnonymousCondition>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct AnonymousCondition {
    path: String,
}

impl Anonymous {
    /// Whether requests for this path may be anonymous.
    pub(super) fn admits(&self, path: &str) -> bool {
        let mut conditions = self.conditions.iter();
        self.enabled && (self.conditions.is_empty() || conditions.any(|one| one.path == path))
    }
}

impl AuthenticationConfiguration {
    /// Parses and validates the file. It must not name an issuer in `own`, the issuers of this cluster's service
    /// account tokens.
    pub(super) fn parse(text: &str, own: &[String]) -> Result<Self, String> {
        let config: Self = machinery::yaml::from_str(text)?;
        if config.kind != "AuthenticationConfiguration"
            || !VERSIONS.contains(&config.api_version.as_str())
        {
            return Err(format!(
                "expected an AuthenticationConfiguration of {}, not a {:?} of {:?}",
                VERSIONS[0], config.kind, config.api_version
            ));
        }
        let errors = config.validate(own);
        match errors.is_empty() {
            true => Ok(config),
            false => Err(machinery::field::aggregate(&errors)),
        }
    }

    fn validate(&self, own: &[String]) -> Errors {
        let mut errors = Errors::new();
        let root = Path::new("jwt");
        if self.jwt.len() > ISSUERS_MAX {
            errors.push(Error::too_many(&root, self.jwt.len(), ISSUERS_MAX));
            return errors;
        }
        let (mut urls, mut discovered) = (BTreeSet::new(), BTreeSet::new());
        for (i, one) in self.jwt.iter().enumerate() {
            let path = root.index(i);
            one.validate(own, &path, &mut errors);
            let path = path.child("issuer");
            if !urls.insert(&one.issuer.url) {
                let url = one.issuer.url.as_str();
                errors.push(Error::duplicate(&path.child("url"), url));
            }
            let url = &one.issuer.discovery_url;
            if !url.is_empty() && !discovered.insert(url) {
                errors.push(Error::duplicate(&path.child("discoveryURL"), url.as_str()));
            }
        }
        if let Some(anonymous) = &self.anonymous
            && !anonymous.enabled
            && !anonymous.conditions.is_empty()
        {
            let why = "enabled should be set to true when conditions are defined";
            let paths = anonymous.conditions.iter().map(|one| one.path.as_str());
            let paths: machinery::Value = paths.collect();
            errors.push(Error::invalid(
                &Path::new("anonymous.conditions"),
                paths,
                why,
            ));
        }
        errors
    }
}

impl IssuerConfig {
    fn validate(&self, own: &[String], path: &Path, errors: &mut Errors) {
        self.issuer.validate(own, &path.child("issuer"), errors);
        let mut email = Email::default();
        let at = path.child("claimValidationRules");
        self.validate_claim_rules(&at, &mut email, errors);
        let at = path.child("claimMappings");
        self.claim_mappings.validate(&at, &mut email, errors);
        let mut seen = BTreeSet::new();
        let at = path.child("userValidationRules");
        for (i, rule) in self.user_validation_rules.iter().enumerate() {
            let path = at.index(i);
            let path = path.child("expression");
            if rule.expression.is_empty() {
                errors.push(Error::required(&path, ""));
            } else if !seen.insert(&rule.expression) {
                errors.push(Error::duplicate(&path, rule.expression.as_str()));
            } else {
                compile(&rule.expression, ExpressionUse::UserRule, &path, errors);
            }
        }
    }

    fn validate_claim_rules(&self, at: &Path, email: &mut Email, errors: &mut Errors) {
        let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
        for (i, rule) in self.claim_validation_rules.iter().enumerate() {
            let path = at.index(i);
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => errors.push(Error::required(&path, "claim or expression is required")),
                ("", expression) => {
                    if !rule.required_value.is_empty() {
                        let why = "may not be specified when expression is set";
                        let at = path.child("requiredValue");
                        errors.push(Error::invalid(&at, rule.required_value.as_str(), why));
                    }
                    let path = path.child("expression");
                    if !expressions.insert(expression) {
                        errors.push(Error::duplicate(&path, expression));
                        continue;
                    }
                    let compiled = compile(expression, ExpressionUse::ClaimRule, &path, errors);
                    email.is_verified |= verifies(compiled.as_ref());
                }
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let why = "may not be specified when claim is set";
                        let at = path.child("message");
                        errors.push(Error::invalid(&at, rule.message.as_str(), why));
                    }
                    if !claims.insert(claim) {
                        errors.push(Error::duplicate(&path.child("claim"), claim));
                    }
                }
                (claim, _) => {
                    let why = "claim and expression can't both be set";
                    errors.push(Error::invalid(&path, claim, why));
                }
            }
        }
    }
}

/// Whether the username comes from `claims.email`, and whether an expression checks `claims.email_verified`.
#[derive(Default)]
struct Email {
    is_name: bool,
    is_verified: bool,
}

fn verifies(expression: Option<&Expression>) -> bool {
    expression.is_some_and(|it| it.selects("email_verified"))
}

fn compile(
    text: &str,
    kind: ExpressionUse,
    path: &Path,
    errors: &mut Errors,
) -> Option<Expression> {
    let compiled = Expression::compile(text, kind);
    compiled
        .map_err(|why| errors.push(Error::invalid(path, text, why)))
        .ok()
}

impl Issuer {
    fn validate(&self, own: &[String], path: &Path, errors: &mut Errors) {
        let at = path.child("url");
        if self.url.is_empty() {
            errors.push(Error::required(&at, ""));
        } else {
            if own.contains(&self.url) {
                let why = format!(
                    "URL must not overlap with disallowed issuers: [{}]",
                    own.join(" ")
                );
                errors.push(Error::invalid(&at, self.url.as_str(), why));
            }
            check_url(&self.url, &at, errors);
        }
        if !self.discovery_url.is_empty() {
            let at = path.child("discoveryURL");
            let plain = |url: &str| url.trim_end_matches('/').to_owned();
            if !self.url.is_empty() && plain(&self.url) == plain(&self.discovery_url) {
                let why = "discoveryURL must be different from URL";
                errors.push(Error::invalid(&at, self.discovery_url.as_str(), why));
            }
            check_url(&self.discovery_url, &at, errors);
        }
        self.validate_audiences(path, errors);
        if !self.certificate_authority.is_empty() {
            let pem = self.certificate_authority.as_bytes();
            let all: Result<Vec<CertificateDer<'_>>, _> =
                CertificateDer::pem_slice_iter(pem).collect();
            if all.map_or(true, |all| all.is_empty()) {
                let at = path.child("certificateAuthority");
                let why = "data does not contain any valid RSA or ECDSA certificates";
                errors.push(Error::invalid(&at, "<omitted>", why));
            }
        }
        if !self.egress_selector_type.is_empty() {
            let at = path.child("egressSelectorType");
            let why = "egress selection is not supported";
            let given = self.egress_selector_type.as_str();
            errors.push(Error::invalid(&at, given, why));
        }
    }

    fn validate_audiences(&self, path: &Path, errors: &mut Errors) {
        let at = path.child("audiences");
        if self.audiences.is_empty() {
            let why = format!("at least one {at} is required");
            return errors.push(Error::required(&at, why));
        }
        let mut seen = BTreeSet::new();
        for (i, audience) in self.audiences.iter().enumerate() {
            if audience.is_empty() {
                errors.push(Error::required(&at.index(i), ""));
            }
            if !seen.insert(audience) {
                errors.push(Error::duplicate(&at.index(i), audience.as_str()));
            }
        }
        let policy = self.audience_match_policy.as_str();
        let why = match (self.audiences.len(), policy) {
            (_, "MatchAny") | (1, "") => return,
            (1, _) => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        let at = path.child("audienceMatchPolicy");
        errors.push(Error::invalid(&at, policy, why));
    }
}

fn check_url(url: &str, path: &Path, errors: &mut Errors) {
    let mut wrong = |why: &str| errors.push(Error::invalid(path, url, why));
    let (plain, fragment) = url.split_once('#').unwrap_or((url, ""));
    let uri: Uri = match plain.parse() {
        Ok(uri) => uri,
        Err(error) => return wrong(&format!("{error}")),
    };
    if uri.scheme_str() != Some("https") {
        wrong("URL scheme must be https");
    }
    if uri.authority().is_some_and(|it| it.as_str().contains('@')) {
        wrong("URL must not contain a username or password");
    }
    if uri.query().is_some_and(|query| !query.is_empty()) {
        wrong("URL must not contain a query");
    }
    if !fragment.is_empty() {
        wrong("URL must not contain a fragment");
    }
}

impl Mappings {
    fn validate(&self, path: &Path, email: &mut Email, errors: &mut Errors) {
        let at = path.child("username");
        if let Some(username) = self.username.validate(true, &at, errors) {
            email.is_name |= username.selects("email");
            email.is_verified |= verifies(Some(&username));
        }
        self.groups.validate(false, &path.child("groups"), errors);
        let at = path.child("uid");
        match (self.uid.claim.as_str(), self.uid.expression.as_str()) {
            (_, "") => {}
            ("", text) => {
                compile(
                    text,
                    ExpressionUse::Mapping,
                    &at.child("expression"),
                    errors,
                );
            }
            _ => errors.push(Error::invalid(
                &at,
                "",
                "claim and expression can't both be set",
            )),
        }
        let mut seen = BTreeSet::new();
        let at = path.child("extra");
        for (i, extra) in self.extra.iter().enumerate() {
            let path = at.index(i);
            check_extra_key(&extra.key, &path.child("key"), errors);
            if !seen.insert(&extra.key) {
                errors.push(Error::duplicate(&path.child("key"), extra.key.as_str()));
                continue;
            }
            let path = path.child("valueExpression");
            if extra.value_expression.is_empty() {
                errors.push(Error::required(&path, ""));
                continue;
            }
            let compiled = compile(
                &extra.value_expression,
                ExpressionUse::Mapping,
                &path,
                errors,
            );
            email.is_verified |= verifies(compiled.as_ref());
        }
        if email.is_name && !email.is_verified {
            let why = "claims.email_verified must be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression";
            let at = path.child("username");
            let at = at.child("expression");
            let given = self.username.expression.as_str();
            errors.push(Error::invalid(&at, given, why));
        }
    }
}

impl Mapping {
    fn validate(&self, required: bool, path: &Path, errors: &mut Errors) -> Option<Expression> {
        match (self.claim.as_str(), self.expression.as_str()) {
            ("", "") if required => {
                errors.push(Error::required(path, "claim or expression is required"));
                None
            }
            ("", "") => None,
            (_, "") => {
                if self.prefix.is_none() {
                    let why = "prefix is required when claim is set. It can be set to an empty string to disable prefixing";
                    errors.push(Error::required(&path.child("prefix"), why));
                }
                None
            }
            ("", text) => {
                if let Some(prefix) = &self.prefix {
                    let why = "may not be specified when expression is set";
                    errors.push(Error::invalid(&path.child("prefix"), prefix.as_str(), why));
                }
                compile(
                    text,
                    ExpressionUse::Mapping,
                    &path.child("expression"),
                    errors,
                )
            }
            _ => {
                let why = "claim and expression can't both be set";
                errors.push(Error::invalid(path, "", why));
                None
            }
        }
    }
}

/// Validates a key of `extra`: a domain, not one of Kubernetes', followed by a path.
fn check_extra_key(key: &str, path: &Path, errors: &mut Errors) {
    let (domain, rest) = key.split_once('/').unwrap_or((key, ""));
    if key.is_empty() {
        errors.push(Error::required(path, ""));
    } else if domain.is_empty() || rest.is_empty() {
        let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
        errors.push(Error::invalid(path, key, why));
    } else {
        for why in format::dns1123_subdomain(domain) {
            errors.push(Error::invalid(path, key, why));
        }
    }
    if key != key.to_lowercase() {
        errors.push(Error::invalid(path, key, "must be lowercase"));
    }
    let reserved = ["kubernetes.io", "k8s.io"];
    let is_reserved = |one: &&str| domain == *one || domain.ends_with(&format!(".{one}"));
    if !rest.is_empty() && reserved.iter().any(is_reserved) {
        let why = "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
        errors.push(Error::invalid(path, key, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

    fn refused(jwt: &str) -> String {
        let own = ["https://own.example".to_owned()];
        match AuthenticationConfiguration::parse(&format!("{HEAD}{jwt}"), &own) {
            Ok(_) => String::new(),
            Err(why) => why,
        }
    }

    #[test]
    fn issuers_have_a_url_audiences_and_a_mapping_of_the_name() {
        let good = "jwt:\n- issuer: {url: 'https://a.example', audiences: [x]}\n  claimMappings: {username: {claim: sub, prefix: ''}}\n";
        assert_eq!(refused(good), "");
        assert_eq!(
            refused(""),
            "",
            "a file without issuers is one to be filled later"
        );
        for (from, to, why) in [
            (
                "'https://a.example'",
                "''",
                "jwt[0].issuer.url: Required value",
            ),
            (
                "https://a",
                "http://a",
                "jwt[0].issuer.url: Invalid value: \"http://a.example\": URL scheme must be https",
            ),
            (
                "https://a.example",
                "https://own.example",
                "jwt[0].issuer.url: Invalid value: \"https://own.example\": URL must not overlap with disallowed issuers: [https://own.example]",
            ),
            (
                "https://a.example",
                "https://u:p@a.example/?q#f",
                "URL must not contain a username or password",
            ),
            (
                "[x]",
                "[]",
                "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
            ),
            (
                "[x]",
                "[x, z]",
                "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for multiple audiences",
            ),
            (
                ", prefix: ''",
                "",
                "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be set to an empty string to disable prefixing",
            ),
            (
                "claim: sub, prefix: ''",
                "expression: 'claims.'",
                "jwt[0].claimMappings.username.expression: Invalid value: \"claims.\": compilation failed: ERROR: <input>:1:8: Syntax error",
            ),
            (
                "claim: sub, prefix: ''",
                "expression: claims.email",
                "claims.email_verified must be used",
            ),
            ("issuer:", "issuers:", "issuers"),
        ] {
            let found = refused(&good.replace(from, to));
            assert!(found.contains(why), "{found}");
        }
        assert!(refused("kind: Other\n").len() > 1);
        let other = AuthenticationConfiguration::parse("kind: Config\napiVersion: v1\n", &[]);
        assert!(other.is_err());
    }

    #[test]
    fn rules_and_extra_fields_have_their_forms() {
        let base = "jwt:\n- issuer: {url: 'https://a.example', audiences: [x]}\n  claimMappings:\n    username: {expression: 'claims.sub'}\n";
        for (more, why) in [
            (
                "    extra: [{key: example.com/a, valueExpression: claims.a}]\n",
                "",
            ),
            (
                "    extra: [{key: k8s.io/a, valueExpression: claims.a}]\n",
                "are reserved for Kubernetes use",
            ),
            (
                "    extra: [{key: Example.com/a, valueExpression: claims.a}]\n",
                "must be lowercase",
            ),
            (
                "  claimValidationRules: [{claim: hd, message: m}]\n",
                "jwt[0].claimValidationRules[0].message: Invalid value: \"m\": may not be specified when claim is set",
            ),
            (
                "  claimValidationRules: [{expression: claims.sub}]\n",
                "jwt[0].claimValidationRules[0].expression: Invalid value: \"claims.sub\": must evaluate to bool",
            ),
            (
                "  userValidationRules: [{expression: 'user.name == \"a\"'}]\n",
                "undefined field 'name'",
            ),
        ] {
            let found = refused(&format!("{base}{more}"));
            match why {
                "" => assert_eq!(found, ""),
                why => assert!(found.contains(why), "{found}"),
            }
        }
    }

    #[test]
    fn anonymous_requests_may_be_for_some_paths_only() {
        let read = |text: &str| {
            let config = AuthenticationConfiguration::parse(&format!("{HEAD}{text}"), &[]);
            config.map(|config| config.anonymous.unwrap_or_default())
        };
        let some = read("anonymous: {enabled: true, conditions: [{path: /livez}]}").unwrap();
        assert!(some.admits("/livez") && !some.admits("/readyz"));
        let all = read("anonymous: {enabled: true}").unwrap();
        assert!(all.admits("/readyz"));
        let none = read("anonymous: {enabled: false}").unwrap();
        assert!(!none.admits("/livez"));
        let wrong = read("anonymous: {enabled: false, conditions: [{path: /livez}]}");
        assert!(wrong.unwrap_err().contains("enabled should be set to true"));
    }
}
