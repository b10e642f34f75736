//! One sanitiser for all text that comes from user code.

use std::borrow::Cow;

/// Makes `text` storable everywhere: NUL becomes `␀` (Postgres has no NUL in
/// text) and anything beyond `chars_max` characters is cut and marked with `…`.
pub fn clean(text: &str, chars_max: usize) -> Cow<'_, str> {
    let long = text.char_indices().nth(chars_max).is_some();
    if !long && !text.contains('\0') {
        return Cow::Borrowed(text);
    }
    let keep = if long {
        chars_max.saturating_sub(1)
    } else {
        chars_max
    };
    let mut kept: String = text
        .chars()
        .take(keep)
        .map(|c| if c == '\0' { '\u{2400}' } else { c })
        .collect();
    if long {
        kept.push('…');
    }
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_characters_and_has_no_nul() {
        assert_eq!(clean("fine", 10), "fine");
        assert_eq!(clean("a\0b", 10), "a␀b");
        assert_eq!(clean("ääääää", 4), "äää…");
        assert_eq!(clean(&"x".repeat(5_000_000), 1024).chars().count(), 1024);
    }
}
