use std::collections::BTreeMap;
use std::io::Write;

use super::*;

const HIDDEN_SIZE: usize = 8;
const INTERMEDIATE_SIZE: usize = 12;
const ATTENTION_HEADS: usize = 2;
const LAYER_COUNT: usize = 2;
const VOCABULARY: [&str; 9] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "pump", "bleed", "##ing", "!", "cafe"];

type ReferenceTensors = BTreeMap<String, Vec<f32>>;

/// Returns the tensor shapes of a small network.
fn tensor_shapes() -> BTreeMap<String, Vec<usize>> {
    let mut shapes = BTreeMap::new();
    let mut add = |name: String, shape: &[usize]| _ = shapes.insert(name, shape.to_vec());
    add("embeddings.word_embeddings.weight".into(), &[VOCABULARY.len(), HIDDEN_SIZE]);
    add("embeddings.position_embeddings.weight".into(), &[16, HIDDEN_SIZE]);
    add("embeddings.token_type_embeddings.weight".into(), &[2, HIDDEN_SIZE]);
    add("embeddings.LayerNorm.weight".into(), &[HIDDEN_SIZE]);
    add("embeddings.LayerNorm.bias".into(), &[HIDDEN_SIZE]);
    for layer in 0..LAYER_COUNT {
        for (part, rows, columns) in [
            ("attention.self.query", HIDDEN_SIZE, HIDDEN_SIZE),
            ("attention.self.key", HIDDEN_SIZE, HIDDEN_SIZE),
            ("attention.self.value", HIDDEN_SIZE, HIDDEN_SIZE),
            ("attention.output.dense", HIDDEN_SIZE, HIDDEN_SIZE),
            ("intermediate.dense", INTERMEDIATE_SIZE, HIDDEN_SIZE),
            ("output.dense", HIDDEN_SIZE, INTERMEDIATE_SIZE),
        ] {
            add(format!("encoder.layer.{layer}.{part}.weight"), &[rows, columns]);
            add(format!("encoder.layer.{layer}.{part}.bias"), &[rows]);
        }
        for part in ["attention.output.LayerNorm", "output.LayerNorm"] {
            add(format!("encoder.layer.{layer}.{part}.weight"), &[HIDDEN_SIZE]);
            add(format!("encoder.layer.{layer}.{part}.bias"), &[HIDDEN_SIZE]);
        }
    }
    shapes
}

fn write_model(folder: &Path) -> ReferenceTensors {
    let (mut list, mut data, mut plain) = (serde_json::Map::new(), Vec::new(), ReferenceTensors::new());
    let mut state = 1u64;
    for (name, shape) in tensor_shapes() {
        let count: usize = shape.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
            })
            .collect();
        let from = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let place = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [from, data.len()] });
        list.insert(name.clone(), place);
        plain.insert(name, values);
    }
    let list = serde_json::to_vec(&list).expect("writes");
    let file = [&(list.len() as u64).to_le_bytes()[..], &list, &data].concat();
    fs::write(folder.join("model.safetensors"), file).expect("written");
    fs::write(folder.join("vocab.txt"), VOCABULARY.join("\n")).expect("written");
    let config = serde_json::json!({
        "model_type": "bert", "hidden_size": HIDDEN_SIZE, "num_attention_heads": ATTENTION_HEADS, "num_hidden_layers": LAYER_COUNT,
        "intermediate_size": INTERMEDIATE_SIZE, "max_position_embeddings": 16, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    plain
}

/// Computes the embedding by a naive reference implementation in 64-bit floats.
fn reference_embedding(weights: &ReferenceTensors, ids: &[usize]) -> Vec<f64> {
    let at = |name: &str, index: usize| f64::from(weights[name][index]);
    let norm = |row: &mut Vec<f64>, name: &str| {
        let mean = row.iter().sum::<f64>() / HIDDEN_SIZE as f64;
        let spread = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / HIDDEN_SIZE as f64;
        for (column, value) in row.iter_mut().enumerate() {
            *value = (*value - mean) / (spread + 1e-12).sqrt() * at(&format!("{name}.weight"), column)
                + at(&format!("{name}.bias"), column);
        }
    };
    let linear = |row: &[f64], name: &str| -> Vec<f64> {
        let bias = &weights[&format!("{name}.bias")];
        (0..bias.len())
            .map(|out| {
                let products = row
                    .iter()
                    .enumerate()
                    .map(|(of, value)| value * at(&format!("{name}.weight"), out * row.len() + of));
                products.sum::<f64>() + f64::from(bias[out])
            })
            .collect()
    };
    let mut rows: Vec<Vec<f64>> = ids
        .iter()
        .enumerate()
        .map(|(place, id)| {
            let mut row = (0..HIDDEN_SIZE)
                .map(|column| {
                    at("embeddings.word_embeddings.weight", id * HIDDEN_SIZE + column)
                        + at("embeddings.position_embeddings.weight", place * HIDDEN_SIZE + column)
                        + at("embeddings.token_type_embeddings.weight", column)
                })
                .collect();
            norm(&mut row, "embeddings.LayerNorm");
            row
        })
        .collect();
    for layer in 0..LAYER_COUNT {
        let of = |part: &str| format!("encoder.layer.{layer}.{part}");
        let all = |part: &str| -> Vec<Vec<f64>> {
            rows.iter().map(|row| linear(row, &of(&format!("attention.self.{part}")))).collect()
        };
        let (queries, keys, values) = (all("query"), all("key"), all("value"));
        let each = HIDDEN_SIZE / ATTENTION_HEADS;
        let next: Vec<Vec<f64>> = (0..rows.len())
            .map(|place| {
                let mut context = vec![0.0; HIDDEN_SIZE];
                for head in 0..ATTENTION_HEADS {
                    let columns = head * each..(head + 1) * each;
                    let shares: Vec<f64> = keys
                        .iter()
                        .map(|key| {
                            let product: f64 =
                                columns.clone().map(|column| queries[place][column] * key[column]).sum();
                            (product / (each as f64).sqrt()).exp()
                        })
                        .collect();
                    let sum: f64 = shares.iter().sum();
                    for column in columns {
                        context[column] = values
                            .iter()
                            .zip(&shares)
                            .map(|(value, share)| value[column] * share / sum)
                            .sum();
                    }
                }
                let add = |left: Vec<f64>, right: &[f64]| -> Vec<f64> {
                    left.iter().zip(right).map(|(left, right)| left + right).collect()
                };
                let mut row = add(linear(&context, &of("attention.output.dense")), &rows[place]);
                norm(&mut row, &of("attention.output.LayerNorm"));
                let wide: Vec<f64> = linear(&row, &of("intermediate.dense"))
                    .into_iter()
                    .map(|x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt())))
                    .collect();
                let mut last = add(linear(&wide, &of("output.dense")), &row);
                norm(&mut last, &of("output.LayerNorm"));
                last
            })
            .collect();
        rows = next;
    }
    (0..HIDDEN_SIZE)
        .map(|column| rows.iter().map(|row| row[column]).sum::<f64>() / rows.len() as f64)
        .collect()
}

/// The error function by its series, which converges for the values in this test.
fn erf(x: f64) -> f64 {
    let (mut sum, mut term) = (x, x);
    for at in 1..200 {
        term *= -x * x / f64::from(at);
        sum += term / f64::from(2 * at + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn cosine_similarity(left: &[f32], right: &[f64]) -> f64 {
    let product: f64 = left.iter().zip(right).map(|(left, right)| f64::from(*left) * right).sum();
    let length =
        |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    product / length(&mut left.iter().map(|value| f64::from(*value))) / length(&mut right.iter().copied())
}

#[test]
fn a_network_is_worked_out_as_it_is_described() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = write_model(folder.path());
    let model = SentenceModel::open(folder.path()).expect("opens");
    let texts = ["Bleeding pump!", "Café zeppelin", "pump"];
    let vectors = model.embed(&texts, EmbeddingPurpose::Document).expect("embeds");
    let ids: [&[usize]; 3] = [&[2, 5, 6, 4, 7, 3], &[2, 8, 1, 3], &[2, 4, 3]];
    for ((text, vector), ids) in texts.iter().zip(&vectors).zip(ids) {
        let near = cosine_similarity(vector, &reference_embedding(&weights, ids));
        assert!(near > 0.999_999, "{text}: {near}");
    }
    assert_eq!(model.embed(&[""], EmbeddingPurpose::Query).expect("embeds"), [vec![0.0; HIDDEN_SIZE]]);
    // A text of unknown words gets a zero vector.
    assert_eq!(
        model.embed(&["Кот сидит на окне"], EmbeddingPurpose::Query).expect("embeds"),
        [vec![0.0; HIDDEN_SIZE]]
    );
    // A text longer than the maximum number of positions is split into windows, and all of them count.
    let long = "pump bleed ".repeat(40);
    let vector = &model.embed(&[&long], EmbeddingPurpose::Document).expect("embeds")[0];
    assert!(vector.iter().all(|value| value.is_finite()) && vector != &vectors[2]);
    let told = model.clone().with_prefixes("pump ", "");
    assert_ne!(told.name(), model.name(), "other words before it make other vectors");
}

#[test]
fn folders_that_are_no_model_say_what_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let why = |folder: &Path| SentenceModel::open(folder).expect_err("is none").to_string();
    assert!(why(folder.path()).contains("config.json"));
    write_model(folder.path());
    let config = folder.path().join("config.json");
    let right = fs::read_to_string(&config).expect("read");
    fs::write(&config, right.replace("\"bert\"", "\"roberta\"")).expect("written");
    assert!(why(folder.path()).contains("`roberta`"));
    fs::write(&config, right.replace("\"hidden_size\":8", "\"hidden_size\":10")).expect("written");
    assert!(why(folder.path()).contains("shape"), "{}", why(folder.path()));
    // The product of these sizes is beyond 64 bits.
    fs::write(&config, right.replace("\"hidden_size\":8", &format!("\"hidden_size\":{}", 1_u64 << 62)))
        .expect("written");
    assert!(why(folder.path()).contains("shape"), "{}", why(folder.path()));
    fs::write(&config, &right).expect("written");
    let weights = folder.path().join("model.safetensors");
    let bytes = fs::read(&weights).expect("read");
    for cut in [0, 7, 100, bytes.len() - 1] {
        fs::write(&weights, &bytes[..cut]).expect("written");
        let why = why(folder.path());
        assert!(why.contains("safetensors") || why.contains("beyond"), "{cut}: {why}");
    }
}

/// A folder of a model as one input: its configuration, its vocabulary and its weights, each after its length.
#[test]
fn fuzz_model_folders_are_refused_or_run() {
    let folder = tempfile::tempdir().expect("a folder");
    write_model(folder.path());
    const FILES: [&str; 3] = ["config.json", "vocab.txt", "model.safetensors"];
    let sound = FILES.map(|file| fs::read(folder.path().join(file)).expect("read"));
    let join = |files: &[Vec<u8>; 3]| -> Vec<u8> {
        let with_length = |file: &Vec<u8>| [&(file.len() as u32).to_le_bytes()[..], file].concat();
        files.iter().flat_map(with_length).collect()
    };
    let mut seeds = vec![join(&sound)];
    for (field, size) in [
        ("hidden_size\":8", 1_u64 << 62),
        ("num_hidden_layers\":2", u64::MAX),
        ("max_position_embeddings\":16", u64::MAX),
    ] {
        let config = String::from_utf8_lossy(&sound[0]).into_owned();
        let name = field.split(':').next().expect("a name");
        let config = config.replace(field, &format!("{name}:{size}")).into_bytes();
        seeds.push(join(&[config, sound[1].clone(), sound[2].clone()]));
    }
    windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "sentence_model")
        .seeds(seeds)
        .words(["\"shape\":[", "\"data_offsets\":[0,", "18446744073709551615", "##", "[CLS]", "F16", "BF16"])
        .run(module_path!(), "fuzz_model_folders_are_refused_or_run", |input| {
            let mut rest = input;
            for file in FILES {
                let (length, after) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], rest));
                let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
                let (bytes, after) = after.split_at(length.min(after.len()));
                fs::write(folder.path().join(file), bytes).expect("written");
                rest = after;
            }
            if let Ok(model) = SentenceModel::open(folder.path()) {
                let vector = model.embed_text("Bleeding pump! Café", EmbeddingPurpose::Query);
                assert_eq!(vector.len(), model.dimensions());
            }
        });
}

/// Compares with vectors of all-MiniLM-L6-v2 that numpy computed from the same weights. Runs only if the weights
/// are available.
#[test]
fn minilm_gives_the_vectors_that_it_gives_elsewhere() {
    let Some(folder) = std::env::var_os("WINDLASS_MINILM").map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: all-MiniLM-L6-v2, because WINDLASS_MINILM does not say where its folder is"
        );
        return;
    };
    let model = SentenceModel::open(folder).expect("opens");
    let golden: Vec<(String, Vec<f64>)> =
        serde_json::from_str(include_str!("minilm.json")).expect("is a list of texts and numbers");
    for (text, numbers) in golden {
        let vector = &model.embed(&[&text], EmbeddingPurpose::Query).expect("embeds")[0];
        for (at, (got, right)) in vector.iter().zip(&numbers).enumerate() {
            assert!((f64::from(*got) - right).abs() < 1e-4, "{text}, {at}: {got} {right}");
        }
    }
    // The vocabulary splits Arabic into single letters, so the vector is zero.
    let arabic =
        &model.embed(&["ذهب الولد إلى المدرسة في الصباح"], EmbeddingPurpose::Query).expect("embeds")[0];
    assert!(arabic.iter().all(|value| *value == 0.0));
    let texts = ["a dead car battery", "the automobile would not start", "simmer the onions in butter"];
    let [car, auto, cook] = &model.embed(&texts, EmbeddingPurpose::Query).expect("embeds")[..] else {
        unreachable!()
    };
    let wide: Vec<f64> = car.iter().map(|value| f64::from(*value)).collect();
    assert!(cosine_similarity(auto, &wide) > cosine_similarity(cook, &wide) + 0.2);
}
