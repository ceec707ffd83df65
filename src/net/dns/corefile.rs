//! The syntax of Corefiles: server blocks of plugins with words and one level of inner blocks.

/// Largest text of one key of the ConfigMap.
const TEXT_MAX: usize = 256 * 1024;
/// Most words of one key; each takes some memory of its own.
const WORDS_MAX: usize = 50_000;

/// Why a Corefile is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}, line {line}: {message}")]
pub(crate) struct CorefileError {
    /// The key of the ConfigMap.
    pub(crate) key: String,
    /// The line in the value of the key, from 1.
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// A word and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) line: u32,
    /// The word was in quotes, so that braces in it are text.
    quoted: bool,
}

/// One line of words within the block of a plugin.
pub(crate) type Line = Vec<Word>;

/// A plugin with its arguments and the lines of its block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directive {
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) args: Vec<String>,
    pub(crate) block: Vec<Line>,
}

/// A server block: names of zones and plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerBlock {
    pub(crate) zones: Vec<Word>,
    pub(crate) directives: Vec<Directive>,
}

/// The text of one key of the ConfigMap, for errors about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) key: &'a str,
    pub(crate) text: &'a str,
}

impl Source<'_> {
    pub(crate) fn error(&self, line: u32, message: impl Into<String>) -> CorefileError {
        CorefileError { key: self.key.to_owned(), line, message: message.into() }
    }
}

/// The words of the lines of a text; empty lines are left out. The rules are Caddy's: words end at
/// white space, `#` at the start of a word begins a comment, quotes hold white space and line ends,
/// `\"` is a quote within them, and a backslash at the end of a line continues it.
fn lines(source: Source<'_>) -> Result<Vec<Line>, CorefileError> {
    if source.text.len() > TEXT_MAX {
        return Err(source.error(1, format!("the text is longer than {} KiB", TEXT_MAX / 1024)));
    }
    let mut out: Vec<Line> = Vec::new();
    let mut words: Line = Vec::new();
    let (mut line, mut count) = (1_u32, 0_usize);
    let mut rest = source.text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' => {
                line += 1;
                if !words.is_empty() {
                    out.push(std::mem::take(&mut words));
                }
            }
            c if c.is_whitespace() => {}
            '#' => while rest.next_if(|c| *c != '\n').is_some() {},
            '\\' if rest.next_if_eq(&'\n').is_some() => line += 1,
            c => {
                let at = line;
                let (text, quoted) = if c == '"' {
                    (quoted(&mut rest, &mut line, source, at)?, true)
                } else {
                    let mut text = String::from(c);
                    while let Some(c) = rest.next_if(|c| !c.is_whitespace()) {
                        text.push(c);
                    }
                    (text, false)
                };
                if !quoted && text.contains("{$") {
                    let message = format!("{text}: environment variables are not supported");
                    return Err(source.error(at, message));
                }
                count += 1;
                if count > WORDS_MAX {
                    return Err(source.error(at, format!("more than {WORDS_MAX} words")));
                }
                words.push(Word { text, line: at, quoted });
            }
        }
    }
    if !words.is_empty() {
        out.push(words);
    }
    Ok(out)
}

/// The text up to the closing quote.
fn quoted(
    rest: &mut std::iter::Peekable<std::str::Chars<'_>>,
    line: &mut u32,
    source: Source<'_>,
    at: u32,
) -> Result<String, CorefileError> {
    let mut text = String::new();
    while let Some(c) = rest.next() {
        match c {
            '"' => return Ok(text),
            '\\' if rest.next_if_eq(&'"').is_some() => text.push('"'),
            c => {
                *line += u32::from(c == '\n');
                text.push(c);
            }
        }
    }
    Err(source.error(at, "the quote is not closed"))
}

fn is_brace(word: &Word, brace: &str) -> bool {
    !word.quoted && word.text == brace
}

/// Removes a `{` at the end of a line.
fn take_open(line: &mut Line) -> bool {
    let opens = line.last().is_some_and(|word| is_brace(word, "{"));
    if opens {
        line.pop();
    }
    opens
}

fn check_braces(source: Source<'_>, line: &Line) -> Result<(), CorefileError> {
    match line.iter().find(|word| is_brace(word, "{") || is_brace(word, "}")) {
        Some(word) => {
            Err(source.error(word.line, format!("unexpected `{}` within a line", word.text)))
        }
        None => Ok(()),
    }
}

/// Reads plugins up to the end of the text, or up to the `}` that closes the server block.
fn directives(
    source: Source<'_>,
    lines: &mut std::vec::IntoIter<Line>,
    opened: Option<u32>,
) -> Result<Vec<Directive>, CorefileError> {
    let mut out = Vec::new();
    while let Some(mut line) = lines.next() {
        if let ([word], Some(_)) = (line.as_slice(), opened)
            && is_brace(word, "}")
        {
            return Ok(out);
        }
        let at = line.first().map_or(1, |word| word.line);
        let opens = take_open(&mut line);
        check_braces(source, &line)?;
        let mut words = line.into_iter().map(|word| word.text);
        let Some(name) = words.next() else {
            return Err(source.error(at, "a `{` without the name of a plugin"));
        };
        let mut directive = Directive { name, line: at, args: words.collect(), block: Vec::new() };
        if opens {
            directive.block = block(source, lines, at)?;
        }
        out.push(directive);
    }
    match opened {
        Some(at) => Err(source.error(at, "the server block is not closed by a line `}`")),
        None => Ok(out),
    }
}

/// The lines of the block of a plugin.
fn block(
    source: Source<'_>,
    lines: &mut std::vec::IntoIter<Line>,
    opened: u32,
) -> Result<Vec<Line>, CorefileError> {
    let mut out = Vec::new();
    for line in lines {
        if matches!(line.as_slice(), [word] if is_brace(word, "}")) {
            return Ok(out);
        }
        check_braces(source, &line)?;
        out.push(line);
    }
    Err(source.error(opened, "the block of the plugin is not closed by a line `}`"))
}

/// The plugins of a key `*.override`, which are added to the default server block.
pub(crate) fn parse_override(source: Source<'_>) -> Result<Vec<Directive>, CorefileError> {
    directives(source, &mut lines(source)?.into_iter(), None)
}

/// The server blocks of a key `*.server`.
pub(crate) fn parse_servers(source: Source<'_>) -> Result<Vec<ServerBlock>, CorefileError> {
    let mut lines = lines(source)?.into_iter();
    let mut out = Vec::new();
    while let Some(mut line) = lines.next() {
        let at = line.first().map_or(1, |word| word.line);
        let mut zones: Vec<Word> = Vec::new();
        loop {
            let opens = take_open(&mut line);
            check_braces(source, &line)?;
            let continues = line.last().is_some_and(|word| word.text.ends_with(','));
            zones.extend(line);
            if opens {
                break;
            }
            let next = lines.next();
            line = match next {
                Some(next) if continues || matches!(next.as_slice(), [w] if is_brace(w, "{")) => {
                    next
                }
                _ => {
                    let message = "a server block needs `{` after its zones, as in `example.org {`";
                    return Err(source.error(at, message));
                }
            };
        }
        for zone in &mut zones {
            zone.text = zone.text.trim_end_matches(',').to_owned();
        }
        zones.retain(|zone| !zone.text.is_empty());
        if zones.is_empty() {
            return Err(source.error(at, "a server block without a zone"));
        }
        let directives = directives(source, &mut lines, Some(at))?;
        out.push(ServerBlock { zones, directives });
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
