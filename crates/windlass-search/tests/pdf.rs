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
