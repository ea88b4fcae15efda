//! Fuzzing of the extraction of text from files.

#![cfg(target_os = "linux")]

use std::time::Duration;

use windlass_fuzz::FuzzTarget;

use super::*;

/// The default limits of an index, with fewer steps: a debug build takes each of them slowly.
const BUDGET: ExtractionBudget =
    ExtractionBudget { text_bytes: 4 << 20, inflated_bytes: 16 << 20, steps: 2_000_000 };

const PDF: &str = "%PDF-1.4
1 0 obj <</Type/Catalog/Pages 2 0 R>> endobj
2 0 obj <</Type/Pages/Kids[3 0 R]/Count 1>> endobj
3 0 obj <</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>> endobj
4 0 obj <</Length 60>> stream
BT /F1 12 Tf 72 700 Td (Hello) Tj 0 -14 Td [(wor)-120(ld)] TJ T* <0041> Tj ET q Q /Fm Do
endstream endobj
5 0 obj <</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/ToUnicode 6 0 R/DescendantFonts[7 0 R]>> endobj
6 0 obj <</Length 150>> stream
/CIDInit begincmap 1 begincodespacerange <0000><ffff> endcodespacerange
1 beginbfrange <0000><00ff><0041> endbfrange 1 beginbfchar <0001><00660069> endbfchar endcmap
endstream endobj
7 0 obj <</Type/Font/Subtype/CIDFontType2/W[0[500 600] 3 9 700]/DW 1000>> endobj
xref
0 1
0000000000 65535 f 
trailer <</Root 1 0 R/Size 8/Encrypt 9 0 R/ID[<00><00>]>>
startxref
0
%%EOF";
const PDF_WORDS: [&str; 26] = [
    " 0 R",
    " 0 obj",
    "endobj",
    "stream\n",
    "endstream",
    "/Filter/FlateDecode",
    "/Filter[/ASCIIHexDecode/LZWDecode]",
    "/Type/ObjStm/N 9/First 4",
    "/Type/XRef/W[1 2 1]/Index[0 9]",
    "/Prev 0",
    "/Kids[2 0 R]",
    "/Length 99999999999",
    "beginbfrange",
    "<0000><ffff>",
    "begincodespacerange",
    "/DecodeParms<</Predictor 15/Columns 99999999>>",
    "BT",
    "Tj",
    "Do",
    "cm",
    "[[[[",
    "<<<<",
    "/Subtype/Form",
    "/Encrypt",
    "/W[1 9999999 5]",
    "\\\\000",
];

#[test]
fn pdf_files() {
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "pdf")
        .seeds([PDF])
        .words(PDF_WORDS)
        .max_cpu_time(Duration::from_secs(20))
        .run(module_path!(), "pdf_files", |input| {
            if let Ok(found) = extract_text(DocumentFormat::Pdf, input, BUDGET) {
                assert!(found.text.len() <= BUDGET.text_bytes, "more text than the budget");
            }
        });
}

#[test]
fn texts_and_pages() {
    let seeds = [
        "# Title\n\ntext\n\n```rust\nfn main() {}\n```\n- a\n  - b\n",
        "<html><head><title>T &amp; u</title></head><body><h1>a</h1><pre>x\ny</pre><table><tr><td>1</table>",
        "\u{feff}fn main() {\n}\n\nstruct A;\n",
    ];
    let utf16 = [0xff, 0xfe, b'a', 0, b'\n', 0, 0, 0xd8];
    let words =
        ["<title>", "<svg>", "<!--", "&#x110000;", "```", "\n\n", "<template>", "<h6>", "charset=utf-7"];
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "documents").seeds(seeds).seeds([utf16]).words(words).run(
        module_path!(),
        "texts_and_pages",
        |input| {
            for format in
                [DocumentFormat::Text, DocumentFormat::Markdown, DocumentFormat::Html, DocumentFormat::Code]
            {
                if let Ok(found) = extract_text(format, input, BUDGET) {
                    // A legacy character becomes three bytes at most, and a layout adds breaks.
                    let limit = input.len() * 8 + 64;
                    assert!(found.text.len() <= limit, "{} bytes from {}", found.text.len(), input.len());
                }
            }
            let _ = DocumentFormat::from_bytes(input);
        },
    );
}
