//! The headings of a file.
//!
//! Invariant: an outline is not larger than the headings that it was made from, however they are nested. Paths are
//! therefore written on demand, and not stored with each heading.

/// Maximum number of bytes of a title in a path.
const MAX_TITLE_BYTES: usize = 200;

/// The headings of a file in order, and the current one. Headings are numbered from 1; 0 is the start of the file.
#[derive(Debug, Default)]
pub(crate) struct HeadingOutline {
    headings: Vec<OutlineHeading>,
    current: u32,
}

#[derive(Debug)]
struct OutlineHeading {
    level: u8,
    /// Number of the heading above; 0 if there is none.
    parent: u32,
    title: Box<str>,
}

impl HeadingOutline {
    /// Enters a heading. It closes the headings of the same or a lower rank.
    pub(super) fn enter_heading(&mut self, level: u8, title: &str) {
        let mut parent = self.current;
        while let Some(heading) = self.heading(parent)
            && heading.level >= level
        {
            parent = heading.parent;
        }
        let title = title[..title.floor_char_boundary(MAX_TITLE_BYTES)].into();
        self.headings.push(OutlineHeading { level, parent, title });
        self.current = u32::try_from(self.headings.len()).unwrap_or(0);
    }

    /// Returns the number of the current heading.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// Returns the path of a heading, such as `Install > On Linux`; empty at the start of the file.
    pub(crate) fn path(&self, number: u32) -> String {
        let mut titles = Vec::new();
        let mut at = number;
        while let Some(heading) = self.heading(at) {
            titles.push(&*heading.title);
            at = heading.parent;
        }
        titles.reverse();
        titles.join(" > ")
    }

    fn heading(&self, number: u32) -> Option<&OutlineHeading> {
        self.headings.get((number as usize).checked_sub(1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::HeadingOutline;

    #[test]
    fn a_path_has_the_open_headings_above() {
        let mut outline = HeadingOutline::default();
        assert_eq!(outline.path(outline.current()), "");
        let mut paths = Vec::new();
        for (level, title) in [(2, "a"), (1, "b"), (3, "c"), (2, "d"), (6, "e"), (2, "f"), (1, "g")] {
            outline.enter_heading(level, title);
            paths.push(outline.path(outline.current()));
        }
        assert_eq!(paths, ["a", "b", "b > c", "b > d", "b > d > e", "b > f", "g"]);
        assert_eq!(outline.path(3), "b > c", "an earlier path stays");
        outline.enter_heading(2, &"é".repeat(150));
        assert_eq!(outline.path(outline.current()), format!("g > {}", "é".repeat(100)));
    }
}
