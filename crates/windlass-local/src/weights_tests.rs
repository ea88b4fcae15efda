use super::*;

#[test]
fn a_name_that_nobody_knows_says_what_there_is() {
    let error = Weights::find("gpt-17", &mut |_, _| {}).expect_err("there is none");
    let text = error.to_string();
    assert!(text.contains("`gpt-17`") && text.contains("`smollm2-135m`") && text.contains("hint:"), "{text}");
}

#[test]
fn a_file_that_was_changed_is_not_used() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let known = Weights::known()[0];
    fs::write(folder.path().join(known.file), b"something else").expect("it can be written");
    let error = Weights::find_in(folder.path(), known.name, &mut |_, _| {}).expect_err("it was changed");
    assert!(matches!(error, WeightsError::DigestMismatch { .. }), "{error}");
    assert!(error.to_string().contains("hint: delete it"), "{error}");
}

#[test]
fn what_stands_beside_a_file_is_checked_too() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let known =
        Weights::known().iter().find(|known| !known.companion_files.is_empty()).expect("one has more files");
    let (last, _) = known.files(folder.path()).last().expect("has files");
    fs::create_dir_all(last.parent().expect("a folder")).expect("made");
    for (path, _) in known.files(folder.path()) {
        fs::write(path, b"something else").expect("written");
    }
    let error = Weights::find_in(folder.path(), known.name, &mut |_, _| {}).expect_err("they were changed");
    assert!(matches!(error, WeightsError::DigestMismatch { .. }), "{error}");
    assert!(
        last.starts_with(folder.path().join("all-MiniLM-L6-v2")),
        "a folder of its own: {}",
        last.display()
    );
}

#[test]
fn a_path_is_taken_as_it_is() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let path = folder.path().join("mine.gguf");
    fs::write(&path, b"GGUF").expect("it can be written");
    let name = path.to_string_lossy().into_owned();
    assert_eq!(Weights::find(&name, &mut |_, _| {}).expect("it is there").path(), path);
    assert!(matches!(Weights::from_path("nowhere.gguf"), Err(WeightsError::Unreadable { .. })));
}

/// A source package runs its own build program when it is downloaded.
#[test]
fn a_download_runs_no_program_of_the_package() {
    let arguments = download_arguments("folder", "--index-url=x");
    assert_eq!(arguments.windows(2).filter(|two| *two == ["--only-binary", ":all:"]).count(), 1);
    assert_eq!(arguments[9..], ["--", "--index-url=x"], "a name is not an option");
}
