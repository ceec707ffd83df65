//! The parser: controls, definitions and pipelines.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Failure;
use crate::function::Find;
use crate::go::quote::{quote, unquote};
use crate::parse::lexer::Lexer;
use crate::parse::node::{Branch, Kind, Node, Pipe, Template};
use crate::parse::token::{Item, Token};

/// Controls and parentheses that may be nested in each other; each takes stack.
pub(crate) const MAX_DEPTH: usize = 200;

/// Templates by name.
pub(crate) type Templates = BTreeMap<Arc<str>, Arc<Template>>;

/// Definitions of one text, before they join the others.
struct Shared<'a> {
    lexer: Lexer<'a>,
    /// Items that were read ahead, the next one last.
    ahead: Vec<Item>,
    /// The item read last, whose line errors name.
    last_line: usize,
    action_line: usize,
    defined: Vec<(Arc<str>, Node)>,
}

pub(super) struct Parser<'a> {
    shared: Shared<'a>,
    pub(super) name: &'a str,
    pub(super) find: Find,
    pub(super) vars: Vec<String>,
    range_depth: usize,
    pub(super) depth: usize,
}

/// A parsed text: the template itself and all that it defines, itself included.
pub(crate) struct Parsed {
    pub main: Arc<Template>,
    pub all: Templates,
}

/// Parses `text` as the template `name`.
///
/// # Errors
///
/// Go's text with the line: wrong syntax, an unknown function or variable.
pub(crate) fn parse(name: &str, text: &str, find: Find) -> Result<Parsed, Failure> {
    let shared = Shared {
        lexer: Lexer::new(text),
        ahead: Vec::new(),
        last_line: 1,
        action_line: 0,
        defined: Vec::new(),
    };
    let vars = vec!["$".to_owned()];
    let mut parser = Parser { shared, name, find, vars, range_depth: 0, depth: 0 };
    let root = parser.parse_all()?;
    let defined = std::mem::take(&mut parser.shared.defined);
    let (text, parse_name): (Arc<str>, Arc<str>) = (text.into(), name.into());
    let template = |name: Arc<str>, root: Node| {
        Arc::new(Template { name, parse_name: parse_name.clone(), text: text.clone(), root })
    };
    let main = template(name.into(), root);
    let mut all = Templates::new();
    let defined = defined.into_iter().map(|(name, root)| template(name, root));
    for template in defined.chain([main.clone()]) {
        // Within one text, only an empty definition may be defined again.
        let old_is_full = all.get(&template.name).is_some_and(|old| !old.root.is_empty());
        if old_is_full && !template.root.is_empty() {
            let name = quote(&template.name);
            let text = format!("template: multiple definition of template {name}");
            return Err(parser.error(&text));
        }
        if !old_is_full {
            all.insert(template.name.clone(), template);
        }
    }
    Ok(Parsed { main, all })
}

/// Adds the templates of a text to those before; an empty one does not replace another.
pub(crate) fn add(templates: &mut Templates, parsed: Templates) {
    for (name, template) in parsed {
        if !template.root.is_empty() || !templates.contains_key(&name) {
            templates.insert(name, template);
        }
    }
}

impl Parser<'_> {
    pub(super) fn error(&self, message: &str) -> Failure {
        Failure::new(format!("template: {}:{}: {message}", self.name, self.shared.last_line))
    }

    pub(super) fn next(&mut self) -> Item {
        let item = self.shared.ahead.pop().unwrap_or_else(|| self.shared.lexer.next_item());
        self.shared.last_line = item.line;
        item
    }

    pub(super) fn back(&mut self, item: Item) {
        self.shared.ahead.push(item);
    }

    pub(super) fn peek(&mut self) -> Item {
        let item = self.next();
        self.back(item.clone());
        item
    }

    pub(super) fn next_non_space(&mut self) -> Item {
        loop {
            let item = self.next();
            if item.token != Token::Space {
                return item;
            }
        }
    }

    pub(super) fn peek_non_space(&mut self) -> Item {
        let item = self.next_non_space();
        self.back(item.clone());
        item
    }

    pub(super) fn unexpected(&self, item: &Item, context: &str) -> Failure {
        if item.token == Token::Error {
            let mut extra = String::new();
            let line = self.shared.action_line;
            if line != 0 && line != item.line {
                extra = format!(" in action started at {}:{line}", self.name);
                if item.text.ends_with(" action") {
                    extra = extra.replacen(" in action", "", 1);
                }
            }
            return self.error(&format!("{}{extra}", item.text));
        }
        self.error(&format!("unexpected {} in {context}", item.describe()))
    }

    fn expect(&mut self, token: Token, context: &str) -> Result<Item, Failure> {
        let item = self.next_non_space();
        if item.token != token {
            return Err(self.unexpected(&item, context));
        }
        Ok(item)
    }

    fn nest(&mut self) -> Result<(), Failure> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("max expression depth exceeded"));
        }
        Ok(())
    }

    fn parse_all(&mut self) -> Result<Node, Failure> {
        let pos = self.peek().pos;
        let mut nodes = Vec::new();
        loop {
            let item = self.peek();
            if item.token == Token::Eof {
                break;
            }
            if item.token == Token::LeftDelim {
                let delim = self.next();
                let next = self.next_non_space();
                if next.token == Token::Define {
                    self.definition()?;
                    continue;
                }
                self.back(next);
                self.back(delim);
            }
            let node = self.text_or_action()?;
            if let Kind::End | Kind::Else = node.kind {
                return Err(self.error(&format!("unexpected {node}")));
            }
            nodes.push(node);
        }
        Ok(Node::new(pos, Kind::List(nodes)))
    }

    fn scoped<T>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let vars = std::mem::replace(&mut self.vars, vec!["$".to_owned()]);
        let range_depth = std::mem::take(&mut self.range_depth);
        let result = body(self);
        self.vars = vars;
        self.range_depth = range_depth;
        result
    }

    fn definition(&mut self) -> Result<(), Failure> {
        let context = "define clause";
        let item = self.next_non_space();
        let name = self.template_name(&item, context)?;
        self.expect(Token::RightDelim, context)?;
        let (list, end) = self.scoped(Self::item_list)?;
        if !matches!(end.kind, Kind::End) {
            return Err(self.error(&format!("unexpected {end} in {context}")));
        }
        self.shared.defined.push((name, list));
        Ok(())
    }

    fn template_name(&mut self, item: &Item, context: &str) -> Result<Arc<str>, Failure> {
        if !matches!(item.token, Token::String | Token::RawString) {
            return Err(self.unexpected(item, context));
        }
        let bytes = unquote(&item.text).map_err(|error| self.error(&error.to_string()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned().into())
    }

    /// Nodes up to `end` or `else`, which is returned beside them.
    fn item_list(&mut self) -> Result<(Node, Node), Failure> {
        self.nest()?;
        let pos = self.peek_non_space().pos;
        let mut nodes = Vec::new();
        while self.peek_non_space().token != Token::Eof {
            let node = self.text_or_action()?;
            if let Kind::End | Kind::Else = node.kind {
                self.depth -= 1;
                return Ok((Node::new(pos, Kind::List(nodes)), node));
            }
            nodes.push(node);
        }
        Err(self.error("unexpected EOF"))
    }

    fn text_or_action(&mut self) -> Result<Node, Failure> {
        let item = self.next_non_space();
        match item.token {
            Token::Text => Ok(Node::new(item.pos, Kind::Text(item.text.into()))),
            Token::LeftDelim => {
                self.shared.action_line = item.line;
                let node = self.action();
                if node.is_ok() {
                    self.shared.action_line = 0;
                }
                node
            }
            _ => Err(self.unexpected(&item, "input")),
        }
    }

    fn action(&mut self) -> Result<Node, Failure> {
        let item = self.next_non_space();
        match item.token {
            Token::Block => return self.block(),
            Token::Break => return self.jump(&item, "{{break}}", Kind::Break),
            Token::Continue => return self.jump(&item, "{{continue}}", Kind::Continue),
            Token::Else => return self.else_control(),
            Token::End => {
                let delim = self.expect(Token::RightDelim, "end")?;
                return Ok(Node::new(delim.pos, Kind::End));
            }
            Token::If => return self.control("if"),
            Token::Range => return self.control("range"),
            Token::Template => return self.template(),
            Token::With => return self.control("with"),
            _ => {}
        }
        let pos = item.pos;
        self.back(item);
        let pipe = self.pipeline("command", Token::RightDelim)?;
        Ok(Node::new(pos, Kind::Action(Box::new(pipe))))
    }

    fn jump(&mut self, item: &Item, context: &str, kind: Kind) -> Result<Node, Failure> {
        let next = self.next_non_space();
        if next.token != Token::RightDelim {
            return Err(self.unexpected(&next, context));
        }
        if self.range_depth == 0 {
            return Err(self.error(&format!("{context} outside {{{{range}}}}")));
        }
        Ok(Node::new(item.pos, kind))
    }

    fn else_control(&mut self) -> Result<Node, Failure> {
        let peek = self.peek_non_space();
        if let Token::If | Token::With = peek.token {
            return Ok(Node::new(peek.pos, Kind::Else));
        }
        let item = self.expect(Token::RightDelim, "else")?;
        Ok(Node::new(item.pos, Kind::Else))
    }

    fn control(&mut self, context: &str) -> Result<Node, Failure> {
        let vars = self.vars.len();
        let node = self.control_scope(context)?;
        self.vars.truncate(vars);
        Ok(node)
    }

    fn control_scope(&mut self, context: &str) -> Result<Node, Failure> {
        self.nest()?;
        let pipe = self.pipeline(context, Token::RightDelim)?;
        let is_range = context == "range";
        self.range_depth += usize::from(is_range);
        let (list, next) = self.item_list()?;
        self.range_depth -= usize::from(is_range);
        let mut else_list = None;
        if let Kind::Else = next.kind {
            let chained = match self.peek().token {
                Token::If => context == "if",
                Token::With => context == "with",
                _ => false,
            };
            if chained {
                self.next();
                let inner = self.control(context)?;
                else_list = Some(Box::new(Node::new(next.pos, Kind::List(vec![inner]))));
            } else {
                let (list, end) = self.item_list()?;
                if !matches!(end.kind, Kind::End) {
                    return Err(self.error(&format!("expected end; found {end}")));
                }
                else_list = Some(Box::new(list));
            }
        }
        self.depth -= 1;
        let pos = pipe.pos;
        let branch = Branch { pipe: Box::new(pipe), list: Box::new(list), else_list };
        let kind = match context {
            "if" => Kind::If(branch),
            "with" => Kind::With(branch),
            _ => Kind::Range(branch),
        };
        Ok(Node::new(pos, kind))
    }

    fn block(&mut self) -> Result<Node, Failure> {
        let context = "block clause";
        let item = self.next_non_space();
        let name = self.template_name(&item, context)?;
        let pipe = self.pipeline(context, Token::RightDelim)?;
        let (list, end) = self.scoped(Self::item_list)?;
        if !matches!(end.kind, Kind::End) {
            return Err(self.error(&format!("unexpected {end} in {context}")));
        }
        self.shared.defined.push((name.clone(), list));
        Ok(Node::new(item.pos, Kind::Template(name, Some(Box::new(pipe)))))
    }

    fn template(&mut self) -> Result<Node, Failure> {
        let context = "template clause";
        let item = self.next_non_space();
        let name = self.template_name(&item, context)?;
        let next = self.next_non_space();
        if next.token == Token::RightDelim {
            return Ok(Node::new(item.pos, Kind::Template(name, None)));
        }
        self.back(next);
        let pipe = self.pipeline(context, Token::RightDelim)?;
        Ok(Node::new(item.pos, Kind::Template(name, Some(Box::new(pipe)))))
    }

    /// A pipeline up to and with the item `end`.
    pub(super) fn pipeline(&mut self, context: &str, end: Token) -> Result<Node, Failure> {
        let pos = self.peek_non_space().pos;
        let mut pipe = Pipe { is_assign: false, decl: Vec::new(), cmds: Vec::new() };
        while self.declaration(context, &mut pipe)? {}
        loop {
            let item = self.next_non_space();
            if item.token == end {
                self.check_pipeline(&pipe, context)?;
                return Ok(Node::new(pos, Kind::Pipe(pipe)));
            }
            match item.token {
                Token::Bool
                | Token::CharConstant
                | Token::Complex
                | Token::Dot
                | Token::Field
                | Token::Identifier
                | Token::Number
                | Token::Nil
                | Token::RawString
                | Token::String
                | Token::Variable
                | Token::LeftParen => {
                    self.back(item);
                    let command = self.command()?;
                    pipe.cmds.push(command);
                }
                _ => return Err(self.unexpected(&item, context)),
            }
        }
    }

    /// Reads `$x :=`, `$x =` or `$x,`; true when another variable of `range` may follow.
    fn declaration(&mut self, context: &str, pipe: &mut Pipe) -> Result<bool, Failure> {
        let variable = self.peek_non_space();
        if variable.token != Token::Variable {
            return Ok(false);
        }
        self.next();
        let after = self.peek();
        let next = self.peek_non_space();
        let node = || Node::new(variable.pos, Kind::Variable(vec![variable.text.as_str().into()]));
        if let Token::Assign | Token::Declare = next.token {
            pipe.is_assign = next.token == Token::Assign;
            self.next_non_space();
            pipe.decl.push(node());
            self.vars.push(variable.text.clone());
            return Ok(false);
        }
        if next.token == Token::Char && next.text == "," {
            self.next_non_space();
            pipe.decl.push(node());
            self.vars.push(variable.text.clone());
            if context == "range" && pipe.decl.len() < 2 {
                let follows = self.peek_non_space().token;
                if let Token::Variable | Token::RightDelim | Token::RightParen = follows {
                    return Ok(true);
                }
                return Err(self.error("range can only initialize variables"));
            }
            return Err(self.error(&format!("too many declarations in {context}")));
        }
        if after.token == Token::Space {
            self.back(after);
        }
        self.back(variable);
        Ok(false)
    }

    fn check_pipeline(&self, pipe: &Pipe, context: &str) -> Result<(), Failure> {
        if pipe.cmds.is_empty() {
            return Err(self.error(&format!("missing value for {context}")));
        }
        for (at, command) in pipe.cmds.iter().enumerate().skip(1) {
            let Kind::Command(args) = &command.kind else { continue };
            let constant = args.first().is_some_and(|first| {
                matches!(
                    first.kind,
                    Kind::Bool(_) | Kind::Dot | Kind::Nil | Kind::Number(_) | Kind::String(..)
                )
            });
            if constant {
                let stage = at + 1;
                let text = format!("non executable command in pipeline stage {stage}");
                return Err(self.error(&text));
            }
        }
        Ok(())
    }
}
