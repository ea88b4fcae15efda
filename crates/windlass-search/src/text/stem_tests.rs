use super::stem;

#[test]
fn words_have_the_published_stems() {
    for (word, stems_to) in [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("ties", "tie"),
        ("gas", "gas"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("hopping", "hop"),
        ("hoping", "hope"),
        ("adding", "add"),
        ("happy", "happi"),
        ("relational", "relat"),
        ("vibrations", "vibrat"),
        ("hopefulness", "hope"),
        ("generously", "generous"),
        ("international", "internat"),
        ("interval", "interval"),
        ("biologists", "biolog"),
        ("electrical", "electr"),
        ("adjustable", "adjust"),
        ("controlling", "control"),
        ("skies", "sky"),
        ("succeed", "succeed"),
        ("by", "by"),
        ("b52", "b52"),
        ("müll", "müll"),
    ] {
        assert_eq!(stem(word), stems_to, "{word}");
    }
}
