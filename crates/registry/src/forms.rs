//! The steps of an object to the store: normalised by its schema, with apiVersion and kind,
//! converted to the storage version, encoded.

use machinery::{
    Object, Status, Value,
    decode::{Decoded, Findings},
    normalise,
};

use crate::{Draft, Resource, meta};

impl Resource {
    /// Normalises an object that was constructed, not decoded from a body.
    pub fn normalise(&self, object: Object) -> Result<Decoded, String> {
        let mut findings = Findings::default();
        let value = Value::Object(object);
        let mut object = match self.schema {
            Some(schema) => normalise::object(schema, value, &mut findings),
            None => normalise::unstructured(value, &mut findings),
        }?;
        if let Some(definition) = &self.definition {
            definition.prune_with_nulls(&mut object, &mut findings)?;
        }
        Ok(Decoded { object, findings })
    }

    /// Sets apiVersion and kind.
    pub fn name_kind(&self, object: &mut Object) {
        let kind = &self.kind.names().kind;
        object.insert("apiVersion".to_owned(), self.api_version.clone().into());
        object.insert("kind".to_owned(), kind.clone().into());
    }

    /// An object's canonical bytes and header, in its storage version.
    pub async fn draft(&self, object: &mut Object) -> Result<Draft, Status> {
        self.draft_new(object, None).await
    }

    /// The same for a new object, whose creator owns these fields.
    pub async fn draft_new(
        &self,
        object: &mut Object,
        owned: Option<&[u8]>,
    ) -> Result<Draft, Status> {
        meta::of_mut(object).shift_remove("resourceVersion");
        if let Some(definition) = &self.definition {
            definition.drop_nulls(object);
        }
        let Some(storage) = &self.storage else {
            return self.encode(object, owned);
        };
        let definition = self.definition.as_ref();
        if definition.is_none_or(|definition| definition.conversion.is_none()) {
            return storage.encode(&self.kind.to_stored(object.clone()), owned);
        }
        let mut converted = storage.convert(vec![object.clone()]).await?;
        let converted = converted
            .pop()
            .ok_or_else(|| Status::internal("an object is lost"))?;
        storage.encode(&converted, owned)
    }

    fn encode(&self, object: &Object, owned: Option<&[u8]>) -> Result<Draft, Status> {
        let encoded = machinery::encode::new_object(self.schema, object, owned);
        let fields = self.kind.selectable_fields(object);
        Draft::encoded(object, encoded, fields).map_err(Status::internal)
    }
}
