//! Negotiation of the form of a page: the Accept header as `goautoneg` parses and sorts it, and the
//! types that upstream's serializers of these pages have.

use super::GROUP;

/// Clauses of an Accept header that are read; further ones are ignored.
const CLAUSES_MAX: usize = 64;

/// The encoding of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Yaml,
}

impl Media {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// The result of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Negotiated {
    Text,
    Object {
        media: Media,
        /// `v1alpha1` or `v1beta1`.
        version: &'static str,
        pretty: bool,
    },
    /// No form is accepted. The error has the encoding that the client accepts, if there is one.
    Refused {
        media: Option<Media>,
        pretty: bool,
    },
}

/// One clause.
#[derive(Debug)]
struct Clause<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.trim_matches(' ').split(';');
        let name = parts.next()?;
        let (main, sub) = match name.split_once('/') {
            Some((_, sub)) if sub.is_empty() || sub.contains('/') => return None,
            Some((main, sub)) => (main.trim_matches(' '), sub.trim_matches(' ')),
            None if name.trim_matches(' ') == "*" => ("*", "*"),
            None => return None,
        };
        let mut clause = Self { main, sub, quality: 1.0, parameters: Vec::new() };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim_matches(' ') {
                _ if value.is_empty() || value.contains('=') => {}
                "q" => clause.quality = value.parse().unwrap_or_default(),
                name => clause.parameters.push((name, value.trim_matches(' '))),
            }
        }
        Some(clause)
    }

    /// Whether this clause is sorted before another one. It is no order: as in `goautoneg`, a
    /// wildcard of a higher quality and a type are each before the other.
    fn precedes(&self, other: &Self) -> bool {
        self.quality > other.quality
            || self.main != "*" && other.main == "*"
            || self.sub != "*" && other.sub == "*"
    }

    fn covers(&self, main: &str, sub: &str) -> bool {
        self.main == main && (self.sub == sub || self.sub == "*")
            || self.main == "*" && self.sub == "*"
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().rev().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// Whether the client requests a conversion.
    fn converts(&self) -> bool {
        ["as", "g", "v"].iter().any(|name| self.get(name).is_some())
    }

    /// Whether parameters make the clause unusable: a stream, or a version of the server.
    fn is_excluded(&self) -> bool {
        ["stream", "sv"].iter().any(|name| self.get(name).is_some())
    }

    /// The version of the object of this kind that the clause requests.
    fn version(&self, kind: &str) -> Option<&'static str> {
        let versions = ["v1alpha1", "v1beta1"];
        let version = versions.into_iter().find(|known| self.get("v") == Some(known))?;
        (self.get("g") == Some(GROUP) && self.get("as") == Some(kind)).then_some(version)
    }

    fn is_pretty(&self) -> bool {
        self.get("pretty") == Some("1")
    }
}

/// The clauses in the order in which `goautoneg` tries them.
fn clauses(accept: &str) -> Vec<Clause<'_>> {
    let mut sorted: Vec<Clause<'_>> = Vec::new();
    for clause in accept.split(',').filter_map(Clause::parse).take(CLAUSES_MAX) {
        // The insertion sort that Go uses for short lists.
        let after = sorted.iter().rposition(|earlier| !clause.precedes(earlier));
        sorted.insert(after.map_or(0, |at| at.saturating_add(1)), clause);
    }
    sorted
}

/// Selects the form of the page with an object of this kind.
pub(super) fn negotiate(accept: &str, kind: &str) -> Negotiated {
    let clauses = clauses(accept);
    let encodings = [Media::Json, Media::Yaml];
    let covers = |clause: &Clause<'_>, media: Media| {
        let (main, sub) = media.name().split_once('/').unwrap_or_default();
        clause.covers(main, sub) && !clause.is_excluded()
    };
    for clause in &clauses {
        let media = encodings.into_iter().find(|media| covers(clause, *media));
        if let (Some(media), Some(version)) = (media, clause.version(kind)) {
            return Negotiated::Object { media, version, pretty: clause.is_pretty() };
        }
        if clause.covers("text", "plain") && !clause.is_excluded() && !clause.converts() {
            return Negotiated::Text;
        }
    }
    for clause in clauses.iter().filter(|clause| !clause.converts()) {
        if let Some(media) = encodings.into_iter().find(|media| covers(clause, *media)) {
            return Negotiated::Refused { media: Some(media), pretty: clause.is_pretty() };
        }
    }
    Negotiated::Refused { media: None, pretty: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_sorted_as_by_goautoneg() {
        let order = |accept: &str| {
            let all = clauses(accept);
            all.iter().map(|c| format!("{}/{}", c.main, c.sub)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(order("a/b;q=0.1, c/d"), "c/d a/b");
        assert_eq!(order("*/*, a/*, a/b"), "a/b a/* */*");
        assert_eq!(order("a, a/b/c, */*;q=x, *"), "*/* */*");
    }

    #[test]
    fn a_wildcard_with_parameters_names_an_object() {
        let object = |media| Negotiated::Object { media, version: "v1beta1", pretty: true };
        let parameters = "g=config.k8s.io;v=v1beta1;as=Flagz;pretty=1";
        for (name, media) in [
            ("*/*", Media::Json),
            ("application/*", Media::Json),
            ("application/yaml", Media::Yaml),
        ] {
            assert_eq!(negotiate(&format!("{name};{parameters}"), "Flagz"), object(media));
        }
        let stream = format!("application/json;{parameters};stream=watch");
        let refused = Negotiated::Refused { media: None, pretty: false };
        assert_eq!(negotiate(&stream, "Flagz"), refused);
    }
}
