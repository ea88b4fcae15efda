use super::apply;

const FILE: &str = "one\ntwo\nthree\nfour\nfive\n";

#[test]
fn a_hunk_is_applied_where_its_lines_are() {
    let diff = "--- a/f\n+++ b/f\n@@ -2,2 +2,3 @@\n two\n-three\n+3\n+3.5\n";
    assert_eq!(apply(FILE, diff), Ok("one\ntwo\n3\n3.5\nfour\nfive\n".into()));
    // Wrong line numbers have no effect if the lines match at one position only.
    let wrong = diff.replace("-2,2 +2,3", "-40,9 +1,1");
    assert_eq!(apply(FILE, &wrong), apply(FILE, diff));
}

#[test]
fn hunks_follow_each_other() {
    let diff = "@@ -1 +1,2 @@\n one\n+one and a half\n@@ -5 +6 @@\n-five\n+5\n";
    assert_eq!(apply(FILE, diff), Ok("one\none and a half\ntwo\nthree\nfour\n5\n".into()));
}

#[test]
fn what_is_not_there_or_there_twice_is_refused() {
    let gone = apply(FILE, "@@ -1 +1 @@\n-six\n+6\n").expect_err("is not there");
    assert!(gone.contains("hunk 1") && gone.contains("six"), "{gone}");
    let twice = apply("a\nb\na\nb\n", "@@ -9 +9 @@\n-b\n+c\n").expect_err("is there twice");
    assert!(twice.contains("more than once"), "{twice}");
    for diff in ["", "no diff", "@@ -1 +1 @@\n?one\n", "@@ -9,0 +9 @@\n+x\n"] {
        assert!(apply(FILE, diff).is_err(), "{diff:?}");
    }
}

#[test]
fn ends_of_lines_and_of_files_are_kept() {
    assert_eq!(apply("a\r\nb\r\n", "@@ -2 +2 @@\n-b\n+c\n+d\n"), Ok("a\r\nc\r\nd\r\n".into()));
    assert_eq!(apply("a\nb", "@@ -2 +2,2 @@\n b\n+c\n"), Ok("a\nb\nc\n".into()));
    assert_eq!(apply("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n"), Ok("a\nc".into()));
    assert_eq!(apply("", "@@ -0,0 +1,2 @@\n+a\n+b\n"), Ok("a\nb\n".into()));
}

#[test]
fn what_similar_writes_can_be_applied() {
    let texts =
        ["", "a\n", "a\nb\nc\nd\ne\nf\ng\nh\n", "a\nb\nX\nd\ne\nf\ng\nY\nh", "\n\na\n\n", "h\ng\nf\n"];
    for before in texts {
        for after in texts {
            let diff = similar::TextDiff::from_lines(before, after).unified_diff().to_string();
            if before != after {
                assert_eq!(apply(before, &diff), Ok(after.to_owned()), "{diff}");
            }
        }
    }
}

#[test]
fn line_numbers_of_any_size_are_read() {
    for number in
        ["18446744073709551615", "9223372036854775808", "9223372036854775807", "4294967296", "0", "-1"]
    {
        for count in ["0", "1", "18446744073709551615"] {
            let diff =
                format!("@@ -{number},{count} +1 @@\n-one\n+two\n@@ -{number},{count} +1 @@\n+three\n");
            // Whatever it says, it panics in no build.
            assert!(apply("one\n", &diff).is_err() || number.len() < 3, "{diff}");
            assert_eq!(apply("one\n", &format!("@@ -{number} +1 @@\n-one\n+two\n")).as_deref(), Ok("two\n"));
        }
    }
}
