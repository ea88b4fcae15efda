//! PDF files: text by page, and malicious files.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use miniz_oxide::deflate::compress_to_vec_zlib;
use windlass_search::{Index, IndexDocument, IndexingLimits, IndexingReport, SearchSignals};

/// Builds a PDF file of the given objects; the first one is the catalogue.
fn build_pdf(objects: &[Vec<u8>]) -> Vec<u8> {
    let mut file = b"%PDF-1.7\n".to_vec();
    for (at, object) in objects.iter().enumerate() {
        file.extend(format!("{} 0 obj\n", at + 1).into_bytes());
        file.extend(object);
        file.extend(b"\nendobj\n");
    }
    file.extend(b"trailer << /Root 1 0 R >>\n%%EOF");
    file
}

fn stream_object(dict: &str, data: &[u8]) -> Vec<u8> {
    let mut object = format!("<< {dict} /Length {} >>\nstream\n", data.len()).into_bytes();
    object.extend(data);
    object.extend(b"\nendstream");
    object
}

fn two_page_pdf() -> Vec<u8> {
    let first =
        b"BT /F1 12 Tf 72 700 Td (Bleed \\301 \\302 the ) Tj (pump.) Tj 0 -14 Td [(Then) -300 (wait) 20 (ing)] TJ ET";
    let second = b"BT /F2 12 Tf 72 700 Td <00010002> Tj ET";
    let map = b"1 beginbfchar <0001> <0047> endbfchar 1 beginbfrange <0002> <0003> <00660072> endbfrange";
    build_pdf(&[
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R 4 0 R 2 0 R] /Resources << /Font << /F1 7 0 R /F2 8 0 R >> >> >>"
            .to_vec(),
        b"<< /Type /Page /Contents 5 0 R >>".to_vec(),
        b"<< /Type /Page /Contents [6 0 R] >>".to_vec(),
        stream_object("", first),
        stream_object("/Filter /FlateDecode", &compress_to_vec_zlib(second, 6)),
        b"<< /Type /Font /Subtype /Type1 /Encoding << /Differences [193 /A /eacute] >> >>".to_vec(),
        b"<< /Type /Font /Subtype /Type0 /ToUnicode 9 0 R >>".to_vec(),
        stream_object("", map),
    ])
}

fn index_pdf(bytes: Vec<u8>, limits: IndexingLimits) -> (Index, IndexingReport, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::options().limits(limits).open(folder.path().join("pdf.index")).expect("opens");
    let good = IndexDocument::new("good.txt", "the good heron");
    let report = index.put_documents([IndexDocument::new("x.pdf", bytes), good]).expect("put");
    assert_eq!(index.search("heron").run().expect("searches").hits[0].file_name, "good.txt");
    (index, report, folder)
}

#[test]
fn text_is_found_on_its_page() {
    let (index, report, _folder) = index_pdf(two_page_pdf(), IndexingLimits::default());
    assert!(report.problems.is_empty(), "{report}");
    let found = index.search("bleed pump").signals(SearchSignals::Bm25Only).run().expect("searches");
    assert_eq!(found.hits[0].location.page, 1);
    assert_eq!(found.hits[0].text, "Bleed A é the pump.\nThen waiting\nGfr");
}

/// Returns the text of the only page of a PDF file with one font.
fn page_text(font: &str, content: &[u8]) -> String {
    let file = build_pdf(&[
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] /Resources << /Font << /F 5 0 R >> >> >>".to_vec(),
        b"<< /Type /Page /Contents 4 0 R >>".to_vec(),
        stream_object("", content),
        format!("<< /Type /Font {font} >>").into_bytes(),
        stream_object("", b"2 beginbfrange <05d0> <05ea> <05d0> <0020> <007a> <0020> endbfrange"),
    ]);
    let (index, report, _folder) = index_pdf(file, IndexingLimits::default());
    assert!(report.problems.is_empty(), "{report}");
    let files = index.list_files().expect("lists");
    let id = &files.iter().find(|file| file.name == "x.pdf").expect("is there").id;
    index.file_chunks(id).expect("reads").join("\n")
}

/// The glyphs of a right-to-left line come in the order of their places or of their reading; both are read the same.
#[test]
fn right_to_left_text_is_in_reading_order() {
    let font = "/Subtype /Type0 /ToUnicode 6 0 R /DescendantFonts [<< /DW 500 >>]";
    // "shalom 25 olam", with the first letter at the right.
    let hebrew = "שלום 25 עולם";
    let glyphs: Vec<char> = hebrew.chars().collect();
    let hex = |glyphs: &[char]| glyphs.iter().map(|c| format!("{:04x}", u32::from(*c))).collect::<String>();
    // In a right-to-left line, numbers still run from left to right.
    let visual: Vec<char> = "םלוע 25 םולש".chars().collect();
    let by_place = format!("BT /F 12 Tf 72 700 Td <{}> Tj ET", hex(&visual));
    assert_eq!(page_text(font, by_place.as_bytes()), hebrew);
    let mut by_reading = String::new();
    let places: Vec<usize> = {
        let digits: Vec<usize> = vec![5, 6];
        (0..glyphs.len())
            .map(|at| if digits.contains(&at) { glyphs.len() - 1 - (11 - at) } else { glyphs.len() - 1 - at })
            .collect()
    };
    for (c, place) in glyphs.iter().zip(places) {
        by_reading += &format!("BT /F 12 Tf {} 700 Td <{:04x}> Tj ET\n", 72 + 6 * place, u32::from(*c));
    }
    assert_eq!(page_text(font, by_reading.as_bytes()), hebrew);
}

/// TeX sets an accent and then moves back to set its letter.
#[test]
fn accents_join_their_letters() {
    let font = "/Subtype /Type1 /FirstChar 1 /Widths [333 333 278] /Encoding << /Differences [1 /acute /dieresis /dotlessi /Lslash /afii10017 /ohungarumlaut] >>";
    let content = b"BT /F 10 Tf 72 700 Td [(r) (\\001) 450 (e) (sum) (\\001) 450 (e) ( na) (\\002) 300 (\\003) (ve \\004 \\005 \\006)] TJ ET";
    assert_eq!(page_text(font, content), "résumé naïve Ł А ő");
}

/// Without widths, a standard font has its own; a Type 3 font has its own units.
#[test]
fn words_are_apart_by_the_widths_of_their_font() {
    let content = b"BT /F 10 Tf 72 700 Td (fill) Tj 10.1 0 Td (it) Tj ET";
    // Helvetica: f 278, i 222, l 222, l 222.
    assert_eq!(
        page_text(
            "/Subtype /Type1 /BaseFont /Helvetica",
            b"BT /F 10 Tf 72 700 Td (fill) Tj 12 0 Td (it) Tj ET"
        ),
        "fill it"
    );
    assert_eq!(page_text("/Subtype /Type1 /BaseFont /Helvetica", content), "fillit");
    let units = "/Subtype /Type3 /FontMatrix [0.01 0 0 0.01 0 0] /FirstChar 97 /Widths [50 50 50 50 50 50 50 50 50 50 50 50 50 50 50 50 50 50 50 50]";
    assert_eq!(page_text(units, b"BT /F 10 Tf 72 700 Td (fil) Tj 18 0 Td (ih) Tj ET"), "fil ih");
}

/// Files that anybody may open, made by qpdf: RC4 with 40 and 128 bits, AES with 128 and 256 bits.
#[test]
fn an_empty_password_opens_a_file() {
    let tool = std::process::Command::new("qpdf").arg("--version").output();
    if !tool.is_ok_and(|output| output.status.success()) {
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"not shown: encrypted PDF files, because `qpdf` is not installed\n",
        );
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain.pdf");
    std::fs::write(&plain, two_page_pdf()).expect("written");
    let encrypt = |name: &str, password: &str, arguments: &[&str]| {
        let out = folder.path().join(name);
        let mut command = std::process::Command::new("qpdf");
        command.args(["--allow-weak-crypto", "--encrypt", password, "owner"]).args(arguments).arg("--");
        // qpdf warns about the missing cross-reference table and repairs it.
        let output = command.arg(&plain).arg(&out).output().expect("runs");
        assert!(out.exists(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(&out).expect("read")
    };
    let ways: [(&str, &[&str]); 5] = [
        ("rc4-40.pdf", &["40"]),
        ("rc4-128.pdf", &["128"]),
        ("aes-128.pdf", &["128", "--use-aes=y"]),
        ("aes-256.pdf", &["256"]),
        ("aes-256-r5.pdf", &["256", "--force-R5"]),
    ];
    for (name, arguments) in ways {
        let (index, report, _folder) = index_pdf(encrypt(name, "", arguments), IndexingLimits::default());
        assert!(report.problems.is_empty(), "{name}: {report}");
        let found = index.search("bleed pump").signals(SearchSignals::Bm25Only).run().expect("searches");
        assert!(found.hits[0].text.starts_with("Bleed A é the pump."), "{name}: {found:?}");
        let (_, report, _folder) = index_pdf(encrypt(name, "secret", arguments), IndexingLimits::default());
        assert!(report.problems[0].reason.contains("encrypted with a password"), "{name}: {report}");
    }
}

#[test]
fn what_unpacks_without_end_is_reported() {
    let bomb = compress_to_vec_zlib(&vec![b' '; 8 << 20], 6);
    let twice = compress_to_vec_zlib(&bomb, 6);
    for (filter, data) in [("/FlateDecode", bomb), ("[/FlateDecode /FlateDecode]", twice)] {
        let file = build_pdf(&[
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] >>".to_vec(),
            b"<< /Type /Page /Contents 4 0 R >>".to_vec(),
            stream_object(&format!("/Filter {filter}"), &data),
        ]);
        let (_, report, _folder) =
            index_pdf(file, IndexingLimits { max_inflated_bytes: 1 << 20, ..IndexingLimits::default() });
        assert!(report.problems[0].reason.contains("unpacks to more than 1 MB"), "{report}");
        assert_eq!(report.added, 1);
    }
}

/// Small files whose reading would take hours or gigabytes. Each is reported, and the others of its batch are indexed.
#[test]
fn small_files_that_cost_much_work_are_reported() {
    let pages = |contents: &str, resources: &str| {
        vec![
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] >>".to_vec(),
            format!("<< /Type /Page /Contents {contents} /Resources << {resources} >> >>").into_bytes(),
        ]
    };
    let with_map = |map: &[u8]| {
        let mut objects = pages("4 0 R", "/Font << /F 5 0 R >>");
        objects.push(stream_object("", b"BT /F 12 Tf (ab) Tj ET"));
        objects.push(b"<< /Type /Font /Subtype /Type0 /ToUnicode 6 0 R >>".to_vec());
        objects.push(stream_object("/Filter /FlateDecode", &compress_to_vec_zlib(map, 6)));
        build_pdf(&objects)
    };
    let ranges = b"1 beginbfrange <0000> <ffff> <0041> endbfrange ".repeat(2_000);
    let long_target = [&b"1 beginbfrange <0000> <ffff> <"[..], &b"0041".repeat(100_000), b"> endbfrange "]
        .concat()
        .repeat(20);
    let widths = {
        let mut objects = pages("4 0 R", "/Font << /F 5 0 R >>");
        objects.push(stream_object("", b"BT /F 12 Tf (ab) Tj ET"));
        objects.push(b"<< /Type /Font /Subtype /Type0 /DescendantFonts [6 0 R] >>".to_vec());
        objects.push([&b"<< /W ["[..], &b"0 65535 1 ".repeat(50_000), b"] >>"].concat());
        build_pdf(&objects)
    };
    let trailers = [build_pdf(&pages("4 0 R", "")), b" trailer [ ".repeat(200_000)].concat();
    let packed = {
        let mut objects = pages("null", "");
        let header = b"9 0 ".repeat(100_000);
        let data = [&header[..], &b"[ 1 ".repeat(20), &b"1 ".repeat(500_000)].concat();
        let dict = format!("/Type /ObjStm /N 100000 /First {} /Filter /FlateDecode", header.len());
        objects.push(stream_object(&dict, &compress_to_vec_zlib(&data, 6)));
        build_pdf(&objects)
    };
    let repeated_contents = {
        let mut objects = pages(&format!("[{}]", "4 0 R ".repeat(9_000)), "");
        objects.push(stream_object("", &b"q Q ".repeat(250_000)));
        build_pdf(&objects)
    };
    let run_lengths = {
        let mut objects = pages(&format!("[{}]", "4 0 R ".repeat(9_000)), "");
        objects.push(stream_object("/Filter /RunLengthDecode", &[129u8, b' '].repeat(200_000)));
        build_pdf(&objects)
    };
    for (name, file) in [
        ("ranges", with_map(&ranges)),
        ("widths", widths),
        ("trailers", trailers),
        ("packed", packed),
        ("repeated_contents", repeated_contents),
        ("run_lengths", run_lengths),
    ] {
        let few = IndexingLimits { max_extraction_steps: 4_000_000, ..IndexingLimits::default() };
        let (_, report, _folder) = index_pdf(file, few);
        let reasons: Vec<&str> = report.problems.iter().map(|problem| problem.reason.as_str()).collect();
        let is_told = reasons.iter().any(|reason| {
            reason.contains("too much work")
                || reason.contains("unpacks to more")
                || reason.contains("too long")
        });
        assert!(is_told, "{name}: {report}");
    }
    // A code that stands for a long text is cut, so that it multiplies neither the map nor the page.
    let (index, report, _folder) = index_pdf(with_map(&long_target), IndexingLimits::default());
    assert!(report.problems.is_empty(), "{report}");
    let found = index.search("aaaaaaaaaaaaaaaa").signals(SearchSignals::Bm25Only).run().expect("searches");
    assert!(found.hits.iter().all(|hit| hit.text.len() < 1_000), "{:?}", found.hits.len());
}

#[test]
fn broken_files_are_reported() {
    let whole = two_page_pdf();
    let encrypted = [&whole[..], b"\ntrailer << /Encrypt 5 0 R >>"].concat();
    let (_, report, _folder) = index_pdf(encrypted, IndexingLimits::default());
    assert!(report.problems[0].reason.contains("encrypted"), "{report}");
    let deep = [b"%PDF-1.4\n1 0 obj\n".to_vec(), b"[".repeat(1_000_000)].concat();
    let (_, report, _folder) = index_pdf(deep, IndexingLimits::default());
    assert_eq!(report.problems.len(), 1, "{report}");
    let forms = build_pdf(&[
        b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
        b"<< /Type /Pages /Kids [3 0 R] >>".to_vec(),
        b"<< /Type /Page /Contents 4 0 R /Resources << /XObject << /X 4 0 R >> >> >>".to_vec(),
        stream_object("/Subtype /Form", &b"/X Do ".repeat(30)),
    ]);
    let (_, report, _folder) = index_pdf(forms, IndexingLimits::default());
    assert_eq!(report.problems.len(), 1, "a form that draws itself: {report}");
}

#[test]
fn no_cut_and_no_flipped_byte_panics() {
    let whole = two_page_pdf();
    let mut state = 7u64;
    let mut documents = Vec::new();
    for round in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..=round % 5 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(state >> 33).expect("fits") % bytes.len();
            bytes[at] = state.to_le_bytes()[5];
        }
        if round % 3 == 0 {
            bytes.truncate(usize::try_from(state >> 40).expect("fits") % whole.len());
        }
        documents.push(IndexDocument::new(format!("{round}.pdf"), bytes));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::options().without_vectors().open(folder.path().join("pdf.index")).expect("opens");
    let report = index.put_documents(documents).expect("put");
    assert!(report.added > 0 && !report.problems.is_empty(), "some can be read and some cannot: {report}");
    for problem in report.problems {
        assert!(!problem.reason.contains("bug"), "{problem}");
    }
}
