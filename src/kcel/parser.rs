//! Parses text to a tree, with the ids, messages and limits of cel-go's parser.

mod constructors;
mod literals;
mod macros;

pub(crate) use macros::ACCUMULATOR;

use crate::ast::{Expr, Id, Kind, Literal};
use crate::lexer::{self, Lexeme, Token};
use crate::source::{CompileError, Fault, Location, NOWHERE, Source};

/// Default of cel-go, which Kubernetes does not change. It limits the cost of parsing.
pub const CODE_POINTS_MAX: usize = 100_000;
/// Maximum nesting of each rule of the grammar, and of the tree.
const DEPTH_MAX: usize = 250;

const RESERVED: &[&str] = &[
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "package",
    "namespace",
    "null",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// The tokens that may begin an expression, in the order of ANTLR's messages, and further expected
/// tokens.
const EXPRESSION: &str = "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
const ARGUMENT: &str = "{'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
const INDEX: &str = "{'[', '{', '(', '.', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
const ELEMENT: &str = "{'[', ']', '{', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
const ENTRY: &str = "{'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// A parsed expression with the offsets of its nodes.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) source: Source,
    pub(crate) root: Expr,
    pub(crate) offsets: Offsets,
}

/// Offsets of nodes by id; the offset of an id can be removed.
#[derive(Debug, Default)]
pub(crate) struct Offsets(Vec<Option<usize>>);

impl Offsets {
    pub(crate) fn location(&self, source: &Source, id: Id) -> Location {
        match self.0.get(id).copied().flatten() {
            Some(offset) => source.location(offset),
            None => NOWHERE,
        }
    }
}

pub(crate) fn parse(text: &str, bindings: bool) -> Result<Parsed, CompileError> {
    let source = Source::new(text);
    if source.text.len() > CODE_POINTS_MAX {
        let message = format!(
            "expression code point size exceeds limit: size: {}, limit {CODE_POINTS_MAX}",
            source.text.len()
        );
        return Err(CompileError::new(&source, vec![Fault { location: NOWHERE, message }]));
    }
    let (lexemes, unread) = lexer::tokens(&source);
    let mut faults: Vec<Fault> = Vec::new();
    for one in unread {
        let location = source.location(one.offset);
        faults.push(Fault { location, message: format!("Syntax error: {}", one.message) });
    }
    let mut parser = Parser {
        source: &source,
        lexemes,
        at: 0,
        offsets: Offsets(vec![None]),
        faults,
        depth: [0; 4],
        bindings,
    };
    let root = parser.start();
    let (offsets, faults) = (parser.offsets, parser.faults);
    match root {
        Ok(root) if faults.is_empty() => Ok(Parsed { source, root, offsets }),
        _ => Err(CompileError::new(&source, faults)),
    }
}

/// An error was recorded and parsing cannot continue.
struct Stop;

/// A tree and its depth as cel-go counts it.
struct Node {
    expr: Expr,
    depth: usize,
}

#[derive(Clone, Copy)]
enum Rule {
    Expr,
    Relation,
    Calc,
    Member,
}

struct Parser<'s> {
    source: &'s Source,
    lexemes: Vec<Lexeme>,
    at: usize,
    offsets: Offsets,
    faults: Vec<Fault>,
    depth: [usize; 4],
    /// Whether `cel.bind` is a macro.
    bindings: bool,
}

type Parse<T> = Result<T, Stop>;

impl Parser<'_> {
    fn peek(&self, ahead: usize) -> &Token {
        self.lexemes.get(self.at + ahead).map_or(&Token::End, |lexeme| &lexeme.token)
    }

    fn is(&self, mark: &str) -> bool {
        matches!(self.peek(0), Token::Mark(m) if *m == mark)
    }

    fn offset(&self) -> usize {
        self.lexemes.get(self.at).map_or(self.source.text.len(), |lexeme| lexeme.begin)
    }

    fn advance(&mut self) -> String {
        let text = self.lexemes.get_mut(self.at).map(|lexeme| std::mem::take(&mut lexeme.text));
        self.at += 1;
        text.unwrap_or_default()
    }

    fn take(&mut self, mark: &str) -> bool {
        let found = self.is(mark);
        self.at += usize::from(found);
        found
    }

    fn id(&mut self, offset: usize) -> Id {
        self.offsets.0.push(Some(offset));
        self.offsets.0.len() - 1
    }

    /// Creates a node at the position of another node.
    fn id_like(&mut self, id: Id) -> Id {
        self.offsets.0.push(self.offsets.0.get(id).copied().flatten());
        self.offsets.0.len() - 1
    }

    fn forget(&mut self, id: Id) {
        if id + 1 == self.offsets.0.len() {
            self.offsets.0.pop();
        } else if let Some(offset) = self.offsets.0.get_mut(id) {
            *offset = None;
        }
    }

    fn report(&mut self, offset: usize, message: impl Into<String>) -> Expr {
        let location = self.source.location(offset);
        self.faults.push(Fault { location, message: message.into() });
        Expr { id: self.id(offset), kind: Kind::Unspecified }
    }

    fn fault(&mut self, message: String) {
        let location = self.source.location(self.offset());
        self.faults.push(Fault { location, message: format!("Syntax error: {message}") });
    }

    fn here(&self) -> &str {
        self.lexemes.get(self.at).map_or("<EOF>", |lexeme| &lexeme.text)
    }

    fn syntax<T>(&mut self, expected: &str) -> Parse<T> {
        self.fault(format!("mismatched input '{}' expecting {expected}", self.here()));
        Err(Stop)
    }

    /// Parses a required token. As in ANTLR, one superfluous token is dropped and a missing one is
    /// inserted, so that further errors are found.
    fn expect(&mut self, mark: &'static str) -> Parse<usize> {
        self.expect_among(mark, &format!("'{mark}'"))
    }

    fn expect_among(&mut self, mark: &'static str, expected: &str) -> Parse<usize> {
        let offset = self.offset();
        if self.take(mark) {
            return Ok(offset);
        }
        if *self.peek(1) == Token::Mark(mark) && *self.peek(0) != Token::End {
            self.fault(format!("extraneous input '{}' expecting {expected}", self.here()));
            self.at += 2;
            return Ok(offset);
        }
        let follows = match mark {
            ")" => *self.peek(0) == Token::End,
            "]" => *self.peek(0) == Token::End && expected == "']'",
            ":" => self.begins(0) && expected == "':'" && !self.is("}"),
            _ => false,
        };
        if follows {
            self.fault(format!("missing '{mark}' at '{}'", self.here()));
            return Ok(offset);
        }
        self.syntax(expected)
    }

    /// Whether an expression can begin at a token.
    fn begins(&self, ahead: usize) -> bool {
        match self.peek(ahead) {
            Token::Mark(mark) => {
                matches!(*mark, "[" | "{" | "(" | "." | "-" | "!" | "true" | "false" | "null")
            }
            Token::Escaped | Token::End => false,
            _ => true,
        }
    }

    /// Parses an expression; `expected` lists further tokens that are valid here, for messages.
    fn expr_among(&mut self, expected: &str) -> Parse<Node> {
        if !self.begins(0) {
            if !self.begins(1) || *self.peek(0) == Token::End {
                return self.syntax(expected);
            }
            self.fault(format!("extraneous input '{}' expecting {expected}", self.here()));
            self.at += 1;
        }
        self.expr()
    }

    fn enter(&mut self, rule: Rule) -> Parse<()> {
        let Some(depth) = self.depth.get_mut(rule as usize) else { return Err(Stop) };
        *depth += 1;
        if *depth > DEPTH_MAX {
            let message = format!("expression recursion limit exceeded: {DEPTH_MAX}");
            self.faults.push(Fault { location: NOWHERE, message });
            return Err(Stop);
        }
        Ok(())
    }

    fn leave(&mut self, rule: Rule, count: usize) {
        if let Some(depth) = self.depth.get_mut(rule as usize) {
            *depth -= count;
        }
    }

    fn start(&mut self) -> Parse<Expr> {
        let node = self.expr_among(EXPRESSION)?;
        if *self.peek(0) != Token::End {
            // A superfluous token before the end is dropped.
            let what = if *self.peek(1) == Token::End { "extraneous" } else { "mismatched" };
            self.fault(format!("{what} input '{}' expecting <EOF>", self.here()));
            return Err(Stop);
        }
        if node.depth > DEPTH_MAX {
            let message = "max recursion depth exceeded".into();
            self.faults.push(Fault { location: NOWHERE, message });
            return Err(Stop);
        }
        Ok(node.expr)
    }

    fn expr(&mut self) -> Parse<Node> {
        self.enter(Rule::Expr)?;
        let condition = self.logic("||")?;
        let offset = self.offset();
        let node = if self.take("?") {
            let id = self.id(offset);
            let yes = self.logic("||")?;
            self.expect(":")?;
            let no = self.expr_among(EXPRESSION)?;
            let depth = 1 + condition.depth.max(yes.depth).max(no.depth);
            let args = vec![condition.expr, yes.expr, no.expr];
            Node { expr: call(id, "_?_:_", args), depth }
        } else {
            condition
        };
        self.leave(Rule::Expr, 1);
        Ok(node)
    }

    /// Parses a chain of `||`, or of `&&` within it, to a balanced tree.
    fn logic(&mut self, mark: &'static str) -> Parse<Node> {
        let operand = |parser: &mut Self| match mark {
            "||" => parser.logic("&&"),
            _ => parser.relation(),
        };
        let first = operand(self)?;
        let (mut depth, mut terms, mut ids) = (first.depth, vec![Some(first.expr)], Vec::new());
        loop {
            let offset = self.offset();
            if !self.take(mark) {
                break;
            }
            let next = operand(self)?;
            depth = depth.max(next.depth);
            terms.push(Some(next.expr));
            ids.push(self.id(offset));
        }
        let function = if mark == "||" { "_||_" } else { "_&&_" };
        let expr = balanced(function, &mut terms, &ids);
        Ok(Node { expr, depth })
    }

    fn relation(&mut self) -> Parse<Node> {
        self.enter(Rule::Relation)?;
        let mut left = self.calc(0)?;
        let mut pushed = 1;
        loop {
            let function = match self.peek(0) {
                Token::Mark("<") => "_<_",
                Token::Mark("<=") => "_<=_",
                Token::Mark(">=") => "_>=_",
                Token::Mark(">") => "_>_",
                Token::Mark("==") => "_==_",
                Token::Mark("!=") => "_!=_",
                Token::Mark("in") => "@in",
                _ => break,
            };
            self.enter(Rule::Relation)?;
            pushed += 1;
            let id = self.id(self.offset());
            self.at += 1;
            self.enter(Rule::Relation)?;
            let right = self.calc(0)?;
            self.leave(Rule::Relation, 1);
            left = binary(id, function, left, right);
        }
        self.leave(Rule::Relation, pushed);
        Ok(left)
    }

    /// Parses sums (level 0) or products (1) and their operands.
    fn calc(&mut self, level: u8) -> Parse<Node> {
        self.enter(Rule::Calc)?;
        let mut left = self.unary()?;
        let mut pushed = 1;
        loop {
            let (function, precedence) = match self.peek(0) {
                Token::Mark("+") => ("_+_", 0),
                Token::Mark("-") => ("_-_", 0),
                Token::Mark("*") => ("_*_", 1),
                Token::Mark("/") => ("_/_", 1),
                Token::Mark("%") => ("_%_", 1),
                _ => break,
            };
            if precedence < level {
                break;
            }
            self.enter(Rule::Calc)?;
            pushed += 1;
            let id = self.id(self.offset());
            self.at += 1;
            let right = self.calc(precedence + 1)?;
            left = binary(id, function, left, right);
        }
        self.leave(Rule::Calc, pushed);
        Ok(left)
    }

    fn unary(&mut self) -> Parse<Node> {
        let (mark, function) = match self.peek(0) {
            Token::Mark("!") => ("!", "!_"),
            // A minus sign and a number are one literal.
            Token::Mark("-") if matches!(self.peek(1), Token::Int | Token::Float) => {
                return self.member();
            }
            Token::Mark("-") => ("-", "-_"),
            _ => return self.member(),
        };
        let offset = self.offset();
        let mut count = 0usize;
        while self.take(mark) {
            count += 1;
        }
        if count.is_multiple_of(2) {
            return self.member();
        }
        let id = self.id(offset);
        let operand = self.member()?;
        Ok(Node { depth: operand.depth, expr: call(id, function, vec![operand.expr]) })
    }

    fn member(&mut self) -> Parse<Node> {
        self.enter(Rule::Member)?;
        let mut node = self.primary()?;
        let mut pushed = 1;
        loop {
            let offset = self.offset();
            if self.take(".") {
                node = self.selection(offset, node)?;
            } else if self.take("[") {
                node = self.index(offset, node)?;
            } else {
                break;
            }
            self.enter(Rule::Member)?;
            pushed += 1;
        }
        self.leave(Rule::Member, pushed);
        Ok(node)
    }

    fn selection(&mut self, dot: usize, operand: Node) -> Parse<Node> {
        let optional = self.take("?");
        let at = self.offset();
        let (name, plain) = match self.peek(0) {
            Token::Ident => (self.advance(), true),
            Token::Escaped => {
                self.advance();
                self.report(at, "unsupported syntax: '`'");
                (String::new(), false)
            }
            _ if optional => {
                let location = self.source.location(at);
                let failed = self.syntax("{IDENTIFIER, ESC_IDENTIFIER}");
                self.faults.push(Fault { location, message: "unsupported ident kind".into() });
                return failed;
            }
            Token::Mark(word @ ("true" | "false" | "null")) => {
                let message = format!("mismatched input '{word}' expecting IDENTIFIER");
                self.fault(message);
                self.at += 1;
                return Ok(operand);
            }
            other => {
                // No alternative matches the tokens from the dot on; parsing continues with this
                // token.
                let text = if *other == Token::End { "" } else { self.here() };
                self.fault(format!("no viable alternative at input '.{text}'"));
                return Ok(operand);
            }
        };
        let depth = operand.depth + 1;
        if optional {
            let literal = Expr { id: self.id(at), kind: Kind::Literal(Literal::String(name)) };
            let id = self.id(dot);
            return Ok(Node { expr: call(id, "_?._", vec![operand.expr, literal]), depth });
        }
        let open = self.offset();
        if plain && self.take("(") {
            let id = self.id(open);
            let (args, inner) = self.arguments()?;
            let expr = self.member_call(id, name, operand.expr, args);
            return Ok(Node { expr, depth: depth.max(inner + 1) });
        }
        let kind = Kind::Select { operand: Box::new(operand.expr), field: name, test: false };
        Ok(Node { expr: Expr { id: self.id(dot), kind }, depth })
    }

    fn index(&mut self, open: usize, operand: Node) -> Parse<Node> {
        let function = if self.take("?") { "_[?_]" } else { "_[_]" };
        let id = self.id(open);
        let index = self.expr_among(INDEX)?;
        self.expect("]")?;
        Ok(binary(id, function, operand, index))
    }

    fn arguments(&mut self) -> Parse<(Vec<Expr>, usize)> {
        let (mut args, mut depth) = (Vec::new(), 0);
        if self.take(")") {
            return Ok((args, depth));
        }
        loop {
            let arg = self.expr_among(if args.is_empty() { ARGUMENT } else { EXPRESSION })?;
            depth = depth.max(arg.depth);
            args.push(arg.expr);
            if !self.take(",") {
                break;
            }
        }
        self.expect(")")?;
        Ok((args, depth))
    }

    fn primary(&mut self) -> Parse<Node> {
        let begin = self.offset();
        if self.take("(") {
            let inner = self.expr_among(EXPRESSION)?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.take("[") {
            return self.list(begin);
        }
        if self.take("{") {
            return self.map(begin);
        }
        if self.is(".") || *self.peek(0) == Token::Ident {
            return self.name(begin);
        }
        if let Some(expr) = self.literal(begin) {
            return Ok(Node { expr, depth: 0 });
        }
        // A superfluous token before an operand is dropped.
        if self.begins(1) && *self.peek(0) != Token::End {
            self.fault(format!("extraneous input '{}' expecting {EXPRESSION}", self.here()));
            self.at += 1;
            return self.primary();
        }
        self.syntax(EXPRESSION)
    }

    /// Parses a variable, a call or an object, which begin with a name.
    fn name(&mut self, begin: usize) -> Parse<Node> {
        let mut name = String::new();
        if self.take(".") {
            name.push('.');
        }
        if *self.peek(0) != Token::Ident {
            return self.syntax("IDENTIFIER");
        }
        if let Some(node) = self.object(&name)? {
            return Ok(node);
        }
        let at = self.offset();
        let word = self.advance();
        let reserved = RESERVED.contains(&word.as_str());
        name.push_str(&word);
        let open = self.offset();
        if self.take("(") {
            let known = self.faults.len();
            let id = self.id(open);
            let (args, depth) = self.arguments()?;
            if reserved {
                self.faults.truncate(known);
                let expr = self.report(begin, format!("reserved identifier: {word}"));
                return Ok(Node { expr, depth });
            }
            let expr = self.global_call(id, name, args);
            return Ok(Node { expr, depth });
        }
        if reserved {
            let expr = self.report(begin, format!("reserved identifier: {word}"));
            return Ok(Node { expr, depth: 0 });
        }
        Ok(Node { expr: Expr { id: self.id(at), kind: Kind::Ident(name) }, depth: 0 })
    }
}

fn call(id: Id, function: &str, args: Vec<Expr>) -> Expr {
    Expr { id, kind: Kind::Call { target: None, function: function.into(), args } }
}

fn binary(id: Id, function: &str, left: Node, right: Node) -> Node {
    let depth = 1 + left.depth.max(right.depth);
    Node { expr: call(id, function, vec![left.expr, right.expr]), depth }
}

/// Builds a tree of the terms of a chain, whose halves have the same number of operators.
fn balanced(function: &str, terms: &mut [Option<Expr>], ids: &[Id]) -> Expr {
    let middle = ids.len() / 2;
    let (Some(id), Some((left, right))) = (ids.get(middle), terms.split_at_mut_checked(middle + 1))
    else {
        return terms
            .first_mut()
            .and_then(Option::take)
            .unwrap_or(Expr { id: 0, kind: Kind::Unspecified });
    };
    let before = ids.get(..middle).unwrap_or_default();
    let after = ids.get(middle + 1..).unwrap_or_default();
    let args = vec![balanced(function, left, before), balanced(function, right, after)];
    call(*id, function, args)
}

#[cfg(test)]
mod tests;
