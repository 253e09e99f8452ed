//! Copies of a store: made while it runs, taken back as a new incarnation.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use model::{Incarnation, Version};
use redb::{
    Builder, Database, Key, ReadTransaction, ReadableDatabase as _, ReadableTable as _,
    TableDefinition, Value, WriteTransaction,
};

use crate::{
    apply::set_version,
    directory::Directory,
    disk::{Disk as _, FileDisk},
    engine::{self, FORMAT_NOW},
    error::{BackupError, EngineError, OpenError},
    read,
    rows::{FORMAT, INDEX, META, RECORDS},
};

/// Enough for copying in order.
const CACHE: usize = 4 << 20;

/// Copies one snapshot of a store into a new file. Returns the version it holds.
pub(crate) fn backup(db: &Database, to: &Path) -> Result<Version, BackupError> {
    if to.try_exists().map_err(BackupError::io("look for", to))? {
        return Err(BackupError::Exists(to.to_owned()));
    }
    let mut new = to.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(BackupError::io("remove", new)(e));
        }
        Ok(()) | Err(_) => {}
    }
    let source = |error: EngineError| BackupError::Source(error.to_string());
    let snapshot = db.begin_read().map_err(|e| source(e.into()))?;
    let version = read::version(&snapshot).map_err(source)?;
    let written = copy(&snapshot, &new);
    written.map_err(|source| BackupError::Write {
        path: new.clone(),
        source,
    })?;
    // A link refuses to overwrite, where a rename would not.
    let parent = to
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(&new)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::hard_link(&new, to))
        .and_then(|()| fs::remove_file(&new))
        .and_then(|()| File::open(parent)?.sync_all())
        .map_err(BackupError::io("put in place", to))?;
    Ok(version)
}

fn copy(snapshot: &ReadTransaction, to: &Path) -> Result<(), EngineError> {
    let copy = Builder::new().set_cache_size(CACHE).create(to)?;
    let transaction = copy.begin_write()?;
    copy_table(snapshot, &transaction, RECORDS)?;
    copy_table(snapshot, &transaction, INDEX)?;
    copy_table(snapshot, &transaction, META)?;
    transaction.commit()?;
    Ok(())
}

fn copy_table<K: Key, V: Value>(
    from: &ReadTransaction,
    to: &WriteTransaction,
    table: TableDefinition<'static, K, V>,
) -> Result<(), EngineError> {
    let from = from.open_table(table)?;
    let mut to = to.open_table(table)?;
    for row in from.iter()? {
        let (key, value) = row?;
        to.insert(key.value(), value.value())?;
    }
    Ok(())
}

/// Makes a data directory hold what a backup holds, as a new incarnation. Returns the version at
/// which it begins, which is newer than every version of the backup and of what the directory held;
/// that is kept beside it.
///
/// # Errors
/// If the file is no backup, the directory is in use, or a step of copying fails; the directory
/// then holds what it held.
pub fn restore(backup: &Path, directory: &Path) -> Result<Version, BackupError> {
    let not_a_backup = |reason: String| BackupError::NotABackup {
        path: backup.to_owned(),
        reason,
    };
    let length = fs::metadata(backup)
        .map_err(BackupError::io("open", backup))?
        .len();
    if length == 0 {
        return Err(not_a_backup("the file is empty".into()));
    }
    let directory = Directory::take(directory)?;
    let new = directory.new_database();
    let mut file = directory.fresh_file(&new)?;
    File::open(backup)
        .and_then(|mut backup| io::copy(&mut backup, &mut file))
        .map_err(BackupError::io("copy", backup))?;
    drop(file);
    let medium = || {
        FileDisk::new(&new)
            .open()
            .map_err(BackupError::io("open", &new))
    };
    engine::verify(medium()?, CACHE).map_err(|e| not_a_backup(e.to_string()))?;
    let medium = medium()?;
    let (db, old) = engine::open(medium, CACHE).map_err(|e| not_a_backup(e.to_string()))?;
    let format = stored_format(&db).map_err(|e| not_a_backup(e.to_string()))?;
    if format != Some(u64::from(FORMAT_NOW)) {
        let found = format.map_or("no format".into(), |f| format!("format {f}"));
        return Err(not_a_backup(format!(
            "it has {found}; this version reads format {FORMAT_NOW}"
        )));
    }
    let newest = directory
        .read_incarnation()?
        .unwrap_or_default()
        .max(old.incarnation());
    let next = newest.0.checked_add(1).map(Incarnation);
    let next = next.ok_or_else(|| BackupError::IncarnationsExhausted(directory.database()))?;
    // Noted first: should the rest fail, the number is skipped, never used twice.
    directory.write_incarnation(next)?;
    let version = Version::new(next, old.sequence());
    begin(&db, version).map_err(|source| BackupError::Write {
        path: new.clone(),
        source,
    })?;
    drop(db);
    set_aside(&directory, newest)?;
    directory.install(&new)?;
    directory.write_format()?;
    Ok(version)
}

fn stored_format(db: &Database) -> Result<Option<u64>, EngineError> {
    let meta = db.begin_read()?.open_table(META)?;
    Ok(meta.get(FORMAT)?.map(|format| format.value()))
}

fn begin(db: &Database, version: Version) -> Result<(), EngineError> {
    let transaction = db.begin_write()?;
    set_version(&transaction, version)?;
    transaction.commit()?;
    Ok(())
}

/// Gives the database that is about to be replaced a second name, so that it stays.
fn set_aside(directory: &Directory, incarnation: Incarnation) -> Result<(), BackupError> {
    let database = directory.database();
    let mut aside = database.as_os_str().to_owned();
    aside.push(format!(".replaced-{}", incarnation.0));
    match fs::hard_link(&database, &aside) {
        Ok(()) => Ok(()),
        // There was none, or an interrupted attempt has already done this.
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists
            ) =>
        {
            Ok(())
        }
        Err(e) => Err(OpenError::io("set aside", &database)(e).into()),
    }
}
