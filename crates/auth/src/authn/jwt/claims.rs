//! Maps the claims of a verified token to a user: by claim name or by CEL expressions over `claims`. Then evaluates the
//! validation rules for the claims and for the user.

use std::sync::{Arc, LazyLock};

use cel::{Decl, DeclKind, Env, Field, ListSemantics, PER_CALL_LIMIT, Program, Type};
use machinery::json::{Map, Value, json};
use request::User;

use super::config::{IssuerConfig, Mapping};

const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// The purpose of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpressionUse {
    Mapping,
    ClaimRule,
    UserRule,
}

/// A compiled expression over `claims` or `user`.
#[derive(Debug)]
pub(super) struct Expression {
    text: String,
    program: Program,
    /// Fields of `claims` that the expression selects; only `email` and `email_verified` are recorded.
    selected: Vec<&'static str>,
}

static CLAIMS: LazyLock<Env> = LazyLock::new(|| {
    let any = Arc::new(Decl::new(DeclKind::Plain(Type::Any), u64::MAX));
    let claims = Decl::new(DeclKind::map(any), u64::MAX);
    Env::new().declared("claims", Arc::new(claims))
});

static USER: LazyLock<(Env, Arc<Decl>)> = LazyLock::new(|| {
    let plain = |kind| Arc::new(Decl::new(kind, u64::MAX));
    let text = || plain(DeclKind::String);
    let texts = || {
        plain(DeclKind::List {
            element: text(),
            semantics: ListSemantics::Atomic,
        })
    };
    let fields = [
        ("username", text()),
        ("uid", text()),
        ("groups", texts()),
        ("extra", plain(DeclKind::map(texts()))),
    ];
    let fields = fields.map(|(name, decl)| {
        let json: Arc<str> = name.into();
        (json.clone(), Field { json, decl })
    });
    let decl = plain(DeclKind::Object {
        name: "kubernetes.UserInfo".into(),
        fields: fields.into(),
    });
    (Env::new().declared("user", decl.clone()), decl)
});

impl Expression {
    pub(super) fn compile(text: &str, kind: ExpressionUse) -> Result<Self, String> {
        let env = match kind {
            ExpressionUse::UserRule => &USER.0,
            ExpressionUse::Mapping | ExpressionUse::ClaimRule => &*CLAIMS,
        };
        let checked =
            cel::compile(env, text).map_err(|issues| format!("compilation failed: {issues}"))?;
        if kind != ExpressionUse::Mapping && *checked.output() != Type::Bool {
            return Err("must evaluate to bool".to_owned());
        }
        let program = Program::new(env, &checked)
            .map_err(|error| format!("program instantiation failed: {error}"))?;
        let selected = ["email", "email_verified"];
        let selected = selected.into_iter();
        Ok(Self {
            text: text.to_owned(),
            program,
            selected: selected
                .filter(|field| checked.selects("claims", field))
                .collect(),
        })
    }

    /// Whether the expression selects this field of `claims`: `email` or `email_verified`.
    pub(super) fn selects(&self, field: &str) -> bool {
        self.selected.contains(&field)
    }

    fn evaluate<'a>(&'a self, variable: cel::Value<'a>) -> Result<cel::Value<'a>, String> {
        let evaluation = self.program.evaluate(&[variable], PER_CALL_LIMIT);
        let why = |error| format!("expression '{}' resulted in error: {error}", self.text);
        evaluation.result.map_err(why)
    }
}

/// Maps the claims of one issuer's tokens to users.
#[derive(Debug)]
pub(super) struct Mapper {
    config: IssuerConfig,
    username: Option<Expression>,
    groups: Option<Expression>,
    uid: Option<Expression>,
    extra: Vec<(String, Expression)>,
    /// Claim validation rules, each with its message.
    claim_rules: Vec<(Expression, String)>,
    user_rules: Vec<(Expression, String)>,
}

impl Mapper {
    pub(super) fn new(config: &IssuerConfig) -> Result<Self, String> {
        let some = |text: &str| {
            let given =
                (!text.is_empty()).then(|| Expression::compile(text, ExpressionUse::Mapping));
            given.transpose()
        };
        let mappings = &config.claim_mappings;
        let mut mapper = Self {
            username: some(&mappings.username.expression)?,
            groups: some(&mappings.groups.expression)?,
            uid: some(&mappings.uid.expression)?,
            extra: Vec::new(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
            config: config.clone(),
        };
        for extra in &mappings.extra {
            let expression = Expression::compile(&extra.value_expression, ExpressionUse::Mapping)?;
            mapper.extra.push((extra.key.clone(), expression));
        }
        let rules = config.claim_validation_rules.iter();
        for rule in rules.filter(|rule| !rule.expression.is_empty()) {
            let expression = Expression::compile(&rule.expression, ExpressionUse::ClaimRule)?;
            mapper.claim_rules.push((expression, rule.message.clone()));
        }
        for rule in &config.user_validation_rules {
            let expression = Expression::compile(&rule.expression, ExpressionUse::UserRule)?;
            mapper.user_rules.push((expression, rule.message.clone()));
        }
        Ok(mapper)
    }

    /// Maps the claims of a token to a user, and validates both.
    pub(super) fn user(&self, claims: &Map) -> Result<User, String> {
        // Expressions see all numbers in claims as doubles.
        let shown = floating(&Value::Object(claims.clone()));
        let value = cel::Value::from_json(&shown, None).map_err(|error| error.to_string())?;
        let mappings = &self.config.claim_mappings;
        let name = self.username(claims, &value)?;
        let groups = match &self.groups {
            Some(expression) => expression
                .evaluate(value.clone())
                .and_then(|found| texts(&found))
                .map_err(|why| format!("oidc: error evaluating group claim expression: {why}"))?,
            None => groups(claims, &mappings.groups)?,
        };
        let mut user = User::new(name, groups);
        user.uid = self.uid(claims, &value)?;
        if let Some(id) = claims.get("jti").and_then(Value::as_str) {
            let id = vec![format!("JTI={id}")];
            user.extra.insert(CREDENTIAL_ID.to_owned(), id);
        }
        for (key, expression) in &self.extra {
            let found = expression.evaluate(value.clone());
            let found = found.and_then(|found| texts(&found)).map_err(|why| {
                let text = &expression.text;
                format!("oidc: error evaluating extra claim expression: {text}: {why}")
            })?;
            if !found.is_empty() {
                user.extra.insert(key.clone(), found);
            }
        }
        self.check_required(claims)?;
        check(&self.claim_rules, &value)
            .map_err(|why| format!("oidc: error evaluating claim validation expression: {why}"))?;
        self.check_user(&user)?;
        Ok(user)
    }

    fn username(&self, claims: &Map, value: &cel::Value<'_>) -> Result<String, String> {
        if let Some(expression) = &self.username {
            let what = "oidc: error evaluating username claim expression";
            let found = expression.evaluate(value.clone());
            return match found.map_err(|why| format!("{what}: {why}"))? {
                cel::Value::String(name) if name.is_empty() => {
                    Err("oidc: empty username via CEL expression is not allowed".to_owned())
                }
                cel::Value::String(name) => Ok(name.to_string()),
                _ => Err(format!(
                    "{what}: username claim expression must return a string"
                )),
            };
        }
        let mapping = &self.config.claim_mappings.username;
        let name = text(claims, &mapping.claim)
            .map_err(|why| format!("oidc: parse username claims {:?}: {why}", mapping.claim))?;
        if mapping.claim == "email" {
            match claims.get("email_verified").map(Value::as_bool) {
                None | Some(Some(true)) => {}
                Some(Some(false)) => return Err("oidc: email not verified".to_owned()),
                Some(None) => {
                    let why = "oidc: parse 'email_verified' claim: not a boolean";
                    return Err(why.to_owned());
                }
            }
        }
        Ok(format!(
            "{}{name}",
            mapping.prefix.as_deref().unwrap_or_default()
        ))
    }

    fn uid(&self, claims: &Map, value: &cel::Value<'_>) -> Result<String, String> {
        let claim = &self.config.claim_mappings.uid.claim;
        match &self.uid {
            Some(expression) => {
                let what = "oidc: error evaluating uid claim expression";
                let found = expression.evaluate(value.clone());
                match found.map_err(|why| format!("{what}: {why}"))? {
                    cel::Value::String(uid) => Ok(uid.to_string()),
                    _ => Err(format!("{what}: uid claim must return a string")),
                }
            }
            None if claim.is_empty() => Ok(String::new()),
            None => {
                let uid = text(claims, claim);
                uid.map(str::to_owned)
                    .map_err(|why| format!("oidc: parse uid claim {claim:?}: {why}"))
            }
        }
    }

    fn check_required(&self, claims: &Map) -> Result<(), String> {
        let rules = self.config.claim_validation_rules.iter();
        for rule in rules.filter(|rule| !rule.claim.is_empty()) {
            let claim = &rule.claim;
            let found = match claims.get(claim.as_str()) {
                None => {
                    return Err(format!(
                        "oidc: required claim {claim} not present in ID token"
                    ));
                }
                Some(found) => found.as_str(),
            };
            let found = found.ok_or_else(|| format!("oidc: parse claim {claim}: not a string"))?;
            if found != rule.required_value {
                return Err(format!(
                    "oidc: required claim {claim} value does not match. Got = {found}, want = {}",
                    rule.required_value
                ));
            }
        }
        Ok(())
    }

    fn check_user(&self, user: &User) -> Result<(), String> {
        if self.user_rules.is_empty() {
            return Ok(());
        }
        let groups = user.groups.iter();
        // User validation rules see only the groups from the token, without `system:authenticated`.
        let groups: Vec<&String> = groups
            .filter(|group| *group != request::user::AUTHENTICATED)
            .collect();
        let mut extra = Map::default();
        for (key, values) in &user.extra {
            let values = values.iter().map(String::as_str).collect::<Value>();
            extra.insert(machinery::json::Key::new(key), values);
        }
        let groups: Value = groups.into_iter().map(String::as_str).collect();
        let shown = json!({
            "username": user.name.as_str(), "uid": user.uid.as_str(),
            "groups": groups, "extra": Value::Object(extra)
        });
        let value = cel::Value::from_json(&shown, Some(&*USER.1));
        let value = value.map_err(|error| error.to_string())?;
        check(&self.user_rules, &value)
            .map_err(|why| format!("oidc: error evaluating user info validation rule: {why}"))
    }
}

fn check(rules: &[(Expression, String)], value: &cel::Value<'_>) -> Result<(), String> {
    for (expression, message) in rules {
        match expression.evaluate(value.clone())? {
            cel::Value::Bool(true) => {}
            cel::Value::Bool(false) => {
                let text = &expression.text;
                return Err(format!("validation expression '{text}' failed: {message}"));
            }
            _ => return Err("validation expression must return a boolean".to_owned()),
        }
    }
    Ok(())
}

fn text<'c>(claims: &'c Map, name: &str) -> Result<&'c str, String> {
    let found = claims.get(name).ok_or("claim not present")?;
    found.as_str().ok_or_else(|| "not a string".to_owned())
}

/// The groups in a claim, which is a string or a list of strings.
fn groups(claims: &Map, mapping: &Mapping) -> Result<Vec<String>, String> {
    let found = match claims.get(mapping.claim.as_str()) {
        Some(found) if !mapping.claim.is_empty() => found,
        _ => return Ok(Vec::new()),
    };
    let prefix = mapping.prefix.as_deref().unwrap_or_default();
    let prefixed = |group: &Value| Some(format!("{prefix}{}", group.as_str()?));
    let groups = match found {
        Value::Array(groups) => groups.iter().map(prefixed).collect(),
        Value::Null => Some(Vec::new()),
        single => prefixed(single).map(|group| vec![group]),
    };
    let why = || {
        format!(
            "oidc: parse groups claim {:?}: neither a string nor a list",
            mapping.claim
        )
    };
    groups.ok_or_else(why)
}

/// The strings of a value, which is a string or a list of strings; empty strings are dropped.
fn texts(value: &cel::Value<'_>) -> Result<Vec<String>, String> {
    let wrong = || "expression must return a string or a list of strings".to_owned();
    let mut found = Vec::new();
    match value {
        cel::Value::Null => {}
        cel::Value::String(text) => found.push(text.to_string()),
        cel::Value::List(list) => {
            for item in list.iter() {
                match item.map_err(|error| error.to_string())? {
                    cel::Value::String(text) => found.push(text.to_string()),
                    _ => return Err(wrong()),
                }
            }
        }
        _ => return Err(wrong()),
    }
    found.retain(|text| !text.is_empty());
    Ok(found)
}

fn floating(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, Value::from),
        Value::Array(items) => items.iter().map(floating).collect(),
        Value::Object(map) => {
            let mut copy = Map::default();
            for (key, inner) in map {
                copy.insert(key.clone(), floating(inner));
            }
            Value::Object(copy)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapper(yaml: &str) -> Mapper {
        let config: IssuerConfig = machinery::yaml::from_str(yaml).unwrap();
        Mapper::new(&config).unwrap()
    }

    fn user(yaml: &str, claims: Value) -> Result<User, String> {
        mapper(yaml).user(claims.as_object().unwrap())
    }

    #[test]
    fn claims_by_name_become_a_user_with_prefixes() {
        let yaml = "claimMappings: {username: {claim: sub, prefix: 'a:'}, groups: {claim: teams, prefix: 'g:'}, uid: {claim: id}}";
        let claims = json!({"sub": "eve", "teams": ["x", "y"], "id": "7", "jti": "t"});
        let found = user(yaml, claims).unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("a:eve", "7"));
        assert_eq!(found.groups, ["g:x", "g:y", "system:authenticated"]);
        assert_eq!(found.extra[CREDENTIAL_ID], ["JTI=t"]);
        let one = user(yaml, json!({"sub": "eve", "teams": "x", "id": "7"})).unwrap();
        assert_eq!(one.groups, ["g:x", "system:authenticated"]);
        let wrong = user(yaml, json!({"sub": 7, "id": "7"})).unwrap_err();
        assert!(wrong.contains("parse username claims \"sub\""), "{wrong}");
    }

    #[test]
    fn an_email_counts_only_if_it_is_verified() {
        let yaml = "claimMappings: {username: {claim: email, prefix: ''}}";
        assert!(user(yaml, json!({"email": "a@b"})).is_ok());
        assert!(user(yaml, json!({"email": "a@b", "email_verified": true})).is_ok());
        let no = user(yaml, json!({"email": "a@b", "email_verified": false}));
        assert_eq!(no.unwrap_err(), "oidc: email not verified");
    }

    #[test]
    fn expressions_make_names_groups_and_extra_fields() {
        let yaml = "
claimMappings:
  username: {expression: 'claims.sub + \"@\" + claims.org.name'}
  groups: {expression: 'dyn(claims.roles).filter(r, r != \"\")'}
  uid: {expression: 'string(claims.number)'}
  extra: [{key: example.com/tenant, valueExpression: claims.tenant}, {key: example.com/none, valueExpression: '\"\"'}]
";
        let claims = json!({"sub": "eve", "org": {"name": "acme"}, "roles": ["a", ""], "number": 7, "tenant": ["t"]});
        let found = user(yaml, claims).unwrap();
        assert_eq!((found.name.as_str(), found.uid.as_str()), ("eve@acme", "7"));
        assert_eq!(found.groups, ["a", "system:authenticated"]);
        assert_eq!(found.extra["example.com/tenant"], ["t"]);
        assert_eq!(found.extra.len(), 1);
        let missing = user(yaml, json!({"sub": "eve"})).unwrap_err();
        assert!(missing.contains("no such key: org"), "{missing}");
    }

    #[test]
    fn rules_refuse_claims_and_users() {
        let yaml = "
claimMappings: {username: {claim: sub, prefix: ''}, groups: {claim: teams, prefix: ''}}
claimValidationRules: [{claim: hd, requiredValue: acme}, {expression: 'claims.exp - claims.iat <= 3600', message: too long}]
userValidationRules: [{expression: '!user.username.startsWith(\"system:\")', message: reserved}, {expression: 'user.groups.all(g, g != \"system:masters\")'}]
";
        let claims = |sub: &str, hd: &str, exp: i64, team: &str| json!({"sub": sub, "hd": hd, "iat": 0, "exp": exp, "teams": [team]});
        assert!(user(yaml, claims("eve", "acme", 60, "x")).is_ok());
        for (claims, why) in [
            (
                claims("eve", "other", 60, "x"),
                "required claim hd value does not match",
            ),
            (claims("eve", "acme", 7200, "x"), "failed: too long"),
            (claims("system:admin", "acme", 60, "x"), "failed: reserved"),
            (
                claims("eve", "acme", 60, "system:masters"),
                "validation expression",
            ),
            (json!({"sub": "eve"}), "required claim hd not present"),
        ] {
            let found = user(yaml, claims).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
    }
}
