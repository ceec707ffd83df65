//! Parses list, map and object literals.

use super::{ELEMENT, ENTRY, EXPRESSION, Node, Parse, Parser};
use crate::ast::{Element, Expr, Field, Kind, MapEntry};
use crate::lexer::Token;

impl Parser<'_> {
    /// Parses the end of a list, a map or an object. A missing end is only inserted after a
    /// trailing comma at the end of the text.
    fn end(&mut self, mark: &'static str, expected: &str) -> Parse<()> {
        if *self.peek(0) == Token::End {
            if expected == format!("'{mark}'") {
                self.fault(format!("missing {expected} at '<EOF>'"));
                return Ok(());
            }
            return self.syntax(expected);
        }
        self.expect_among(mark, expected).map(|_| ())
    }

    /// Whether a token begins another element; otherwise the comma before it is a trailing comma.
    fn goes_on(&self, ahead: usize) -> bool {
        self.begins(ahead) || matches!(self.peek(ahead), Token::Mark("?"))
    }

    pub(super) fn list(&mut self, begin: usize) -> Parse<Node> {
        let id = self.id(begin);
        let (mut elements, mut depth) = (Vec::new(), 0);
        while !(self.is("]") || self.is(",") && elements.is_empty()) {
            let optional = self.take("?");
            let value = self.expr_among(if optional { EXPRESSION } else { ELEMENT })?;
            depth = depth.max(value.depth);
            elements.push(Element { value: value.expr, optional });
            if !self.is(",") || !self.goes_on(1) {
                break;
            }
            self.at += 1;
        }
        let expected = if self.take(",") { "']'" } else { "{']', ','}" };
        self.end("]", expected)?;
        Ok(Node { expr: Expr { id, kind: Kind::List { elements } }, depth })
    }

    pub(super) fn map(&mut self, begin: usize) -> Parse<Node> {
        let id = self.id(begin);
        let (mut entries, mut depth) = (Vec::new(), 0);
        while !(self.is("}") || self.is(",") && entries.is_empty()) {
            let optional = self.take("?");
            // The id of the entry precedes those of its key; its position is the colon.
            let entry = self.id(0);
            let key = self.expr_among(if optional { EXPRESSION } else { ENTRY })?;
            let colon = self.expect(":")?;
            if let Some(offset) = self.offsets.0.get_mut(entry) {
                *offset = Some(colon);
            }
            let value = self.expr_among(EXPRESSION)?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push(MapEntry { id: entry, key: key.expr, value: value.expr, optional });
            if !self.is(",") || !self.goes_on(1) {
                break;
            }
            self.at += 1;
        }
        let expected = if self.take(",") { "'}'" } else { "{'}', ','}" };
        self.end("}", expected)?;
        Ok(Node { expr: Expr { id, kind: Kind::Map { entries } }, depth })
    }

    /// Parses `a.b.C{field: value}`, if it begins here.
    pub(super) fn object(&mut self, dot: &str) -> Parse<Option<Node>> {
        let mut ahead = 1;
        while *self.peek(ahead) == Token::Mark(".") && *self.peek(ahead + 1) == Token::Ident {
            ahead += 2;
        }
        if *self.peek(ahead) != Token::Mark("{") {
            return Ok(None);
        }
        let mut name = dot.to_owned();
        for _ in 0..ahead {
            name.push_str(&self.advance());
        }
        let open = self.offset();
        self.at += 1;
        let id = self.id(open);
        let (mut fields, mut depth) = (Vec::new(), 0);
        while !(self.is("}") || self.is(",") && fields.is_empty()) {
            let optional = self.take("?");
            let at = self.offset();
            let field = match self.peek(0) {
                Token::Ident => self.advance(),
                Token::Escaped => {
                    self.advance();
                    self.report(at, "unsupported syntax: '`'");
                    String::new()
                }
                _ => return self.syntax("{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}"),
            };
            let colon = self.expect(":")?;
            let number = self.id(colon);
            let value = self.expr_among(EXPRESSION)?;
            depth = depth.max(value.depth);
            fields.push(Field { id: number, name: field, value: value.expr, optional });
            if !self.is(",")
                || !matches!(self.peek(1), Token::Ident | Token::Escaped | Token::Mark("?"))
            {
                break;
            }
            self.at += 1;
        }
        let expected = if self.take(",") { "'}'" } else { "{'}', ','}" };
        self.end("}", expected)?;
        Ok(Some(Node { expr: Expr { id, kind: Kind::Struct { name, fields } }, depth }))
    }
}

#[cfg(test)]
mod tests {
    use crate::parser::tests::{check, check_errors};

    /// Rows of cel-go's `parser/parser_test.go`, and the rules `listInit`, `mapInitializerList` and
    /// `fieldInitializerList` of `parser/gen/CEL.g4`.
    #[test]
    fn lists_maps_and_objects_may_end_with_a_comma_and_have_optional_parts() {
        check(&[
            ("[]", "[]"),
            ("[3, 4, 5, ]", "[3, 4, 5]"),
            ("{a: b, c: d, }", "{a:b, c:d}"),
            ("{}", "{}"),
            ("{foo: 5, bar: \"xyz\"}", "{foo:5, bar:\"xyz\"}"),
            ("[?a, ?b]", "[?a, ?b]"),
            ("[?a[?b]]", "[?_[?_](a, b)]"),
            ("{?'key': value}", "{?\"key\":value}"),
            (
                "TestAllTypes{single_int32: 1, single_int64: 2}",
                "TestAllTypes{single_int32:1, single_int64:2}",
            ),
            (".a.B{c: 1}", ".a.B{c:1}"),
        ]);
    }

    /// Rows of cel-go's `parser/parser_test.go`.
    #[test]
    fn unfinished_maps_name_what_may_follow() {
        let entry = "mismatched input '<EOF>' expecting {'[', '{', '}', '(', '.', ',', '-', '!', \
                     '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, \
                     IDENTIFIER}";
        check_errors(&[
            ("{", &[&format!("1:2: Syntax error: {entry}")]),
            ("ind[a{b}]", &["1:8: Syntax error: mismatched input '}' expecting ':'"]),
        ]);
    }
}
