//! Walks a custom object and its schema together.

use machinery::field::Path;

use super::{structural::Schema, view::View};

/// The schema of a field and its path: properties as children, others by key.
pub(super) fn step<'s, 'p>(
    schema: &'s Schema,
    key: &'p str,
    path: &'p Path<'p>,
) -> Option<(&'s Schema, Path<'p>)> {
    if let Some(below) = schema.properties.get(key) {
        return Some((below, path.child(key)));
    }
    schema.field(key).map(|below| (below, path.key(key)))
}

/// Visits a value and everything in it that the schema declares, outermost first.
pub(super) fn each(
    schema: &Schema,
    value: View<'_>,
    path: &Path,
    visit: &mut dyn FnMut(&Schema, View<'_>, &Path),
) {
    visit(schema, value, path);
    match value {
        View::Map(object) => {
            for (key, value) in object.iter() {
                if let Some((below, at)) = step(schema, key, path) {
                    each(below, value.into(), &at, visit);
                }
            }
        }
        View::List(items) => {
            let Some(below) = &schema.items else { return };
            for (index, item) in items.iter().enumerate() {
                each(below, item.into(), &path.index(index), visit);
            }
        }
        _ => {}
    }
}
