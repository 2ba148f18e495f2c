-- Memories found by their words, for all hosts: made of the journals, and made again when lost.
-- See docs/decisions/0021-search-in-postgresql.md; memory/postgres_*.py reads and fills it.

-- A timeline has a line of documents for each of three tiers, numbered without gaps: id is
-- line << 32 | number, line is no * 4 + tier. `counts` and `totals` say how many documents and tokens
-- each has. `gone` counts how often it was emptied: what was read before that is not taken in.
-- `words` of a document are distinct, `times` says how often each occurs, where any occurs twice.
-- memory_terms has them as the index does; of a long one in several parts.
CREATE FUNCTION memory_make() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1869771877, hashtext(current_schema() || ' memory'));
    IF to_regclass('memory_marks') IS NOT NULL AND to_regclass('memory_lines') IS NOT NULL
        AND to_regclass('memory_docs') IS NOT NULL AND to_regclass('memory_terms') IS NOT NULL
        AND to_regclass('memory_ends') IS NOT NULL THEN
        RETURN;
    END IF;
    DROP TABLE IF EXISTS memory_marks, memory_lines, memory_docs, memory_terms, memory_ends;

    CREATE TABLE memory_marks (mark uuid NOT NULL);
    INSERT INTO memory_marks VALUES (gen_random_uuid());

    CREATE TABLE memory_lines (
        name   text COLLATE "C" PRIMARY KEY,
        no     bigint GENERATED ALWAYS AS IDENTITY,
        known  bigint NOT NULL DEFAULT 0,
        gone   bigint NOT NULL DEFAULT 0,
        emptied timestamptz,
        counts bigint[] NOT NULL DEFAULT '{0,0,0}',
        totals bigint[] NOT NULL DEFAULT '{0,0,0}'
    ) WITH (fillfactor = 70);
    CREATE INDEX memory_lines_emptied ON memory_lines (emptied) WHERE known = 0 AND gone > 0;

    CREATE TABLE memory_docs (
        id         bigint PRIMARY KEY,
        line       bigint NOT NULL,
        seq        bigint NOT NULL,
        time       bigint NOT NULL,
        importance double precision NOT NULL,
        since      bigint NOT NULL,
        until      bigint NOT NULL,
        key        bytea NOT NULL,
        scope      bytea NOT NULL,
        length     bigint NOT NULL,
        total      bigint NOT NULL,
        words      text NOT NULL,
        times      bytea,
        hash       bytea NOT NULL
    );
    CREATE INDEX memory_docs_places ON memory_docs (line, seq) INCLUDE (id, total);

    CREATE TABLE memory_terms (
        id    bigint NOT NULL,
        part  int NOT NULL,
        words tsvector NOT NULL,
        PRIMARY KEY (id, part)
    );
    CREATE INDEX memory_terms_words ON memory_terms USING gin (words)
        WITH (fastupdate = on, gin_pending_list_limit = 256);

    CREATE TABLE memory_ends (
        key  bytea NOT NULL,
        no   bigint NOT NULL,
        seq  bigint NOT NULL,
        time bigint NOT NULL,
        PRIMARY KEY (no, seq, key)
    );
    -- a hash: a key may be longer than a btree takes
    CREATE INDEX memory_ends_key ON memory_ends USING hash (key);
END $$;

SELECT memory_make();

-- Takes in events _after < seq <= _upto of some timelines. What another host was faster with is
-- passed over; nothing is done, and the answer says why, where less is known than `_after`, or it
-- was emptied since `_mark` and `_gone` were read. The names are sorted, so two never wait in a circle.
CREATE FUNCTION memory_add(_mark uuid, _names text[], _gone bigint[], _after bigint[],
    _upto bigint[], _of int[], _seqs bigint[], _tiers int[], _times bigint[],
    _importances double precision[], _sinces bigint[], _untils bigint[], _keys bytea[],
    _scopes bytea[], _lengths bigint[], _words text[], _often bytea[], _hashes bytea[],
    _ends_of int[], _end_keys bytea[], _end_seqs bigint[], _end_times bigint[])
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    _why text;
BEGIN
    -- it is made of what is durable already
    PERFORM set_config('synchronous_commit', 'off', true);
    -- who removes a timeline waits, and then finds what this took in
    PERFORM 1 FROM timelines WHERE id = ANY (
        SELECT n::uuid FROM unnest(_names) AS n WHERE n ~ '^[0-9a-f]{32}$')
        ORDER BY id FOR KEY SHARE;
    INSERT INTO memory_lines (name) SELECT n FROM unnest(_names) AS n ON CONFLICT DO NOTHING;
    PERFORM 1 FROM memory_lines WHERE name = ANY (_names) ORDER BY name FOR UPDATE;
    IF NOT EXISTS (SELECT 1 FROM memory_marks WHERE mark = _mark) THEN
        RETURN 'the index of memories was emptied while events were read';
    END IF;
    SELECT CASE WHEN l.gone <> a.gone
            THEN format('timeline %s was emptied while its events were read', l.name)
            ELSE format('events %s to %s are not in the index of memories', l.known + 1, a.after)
        END INTO _why
        FROM unnest(_names, _gone, _after) AS a (name, gone, after) JOIN memory_lines AS l USING (name)
        WHERE l.gone <> a.gone OR l.known < a.after LIMIT 1;
    IF _why IS NOT NULL THEN
        RETURN _why;
    END IF;
    WITH lines AS (
        SELECT a.n, l.no, l.known, l.counts, l.totals, a.upto
        FROM unnest(_names, _upto) WITH ORDINALITY AS a (name, upto, n)
        JOIN memory_lines AS l USING (name) WHERE a.upto > l.known
    ), docs AS (
        SELECT l.no * 4 + d.tier AS line, d.*,
            l.counts[d.tier + 1] + row_number() OVER w AS number,
            (l.totals[d.tier + 1] + sum(d.length) OVER w)::bigint AS total
        FROM unnest(_of, _seqs, _tiers, _times, _importances, _sinces, _untils, _keys, _scopes,
            _lengths, _words, _often, _hashes) AS d ("of", seq, tier, time, importance, since, until,
            key, scope, length, words, times, hash)
        JOIN lines AS l ON l.n = d.of AND d.seq > l.known AND d.seq <= l.upto
        WINDOW w AS (PARTITION BY l.no, d.tier ORDER BY d.seq)
    ), put AS (
        INSERT INTO memory_docs
        SELECT line << 32 | number, line, seq, time, importance, since, until, key, scope, length,
            total, words, times, hash FROM docs
    ), short AS (
        INSERT INTO memory_terms
        SELECT line << 32 | number, 0, array_to_tsvector(string_to_array(words, ' ')) FROM docs
        WHERE length <= 2000
    ), long AS ( -- a tsvector holds no more than a megabyte
        INSERT INTO memory_terms
        SELECT line << 32 | number, (n - 1) / 2000, array_to_tsvector(array_agg(word)) FROM docs,
            unnest(string_to_array(words, ' ')) WITH ORDINALITY AS w (word, n)
        WHERE length > 2000 GROUP BY 1, 2
    ), over AS (
        INSERT INTO memory_ends
        SELECT e.key, l.no, e.seq, e.time
        FROM unnest(_ends_of, _end_keys, _end_seqs, _end_times) AS e ("of", key, seq, time)
        JOIN lines AS l ON l.n = e.of AND e.seq > l.known AND e.seq <= l.upto
        ON CONFLICT DO NOTHING
    ), more AS (
        SELECT no, tier, max(number) AS count, max(total) AS total
        FROM (SELECT line / 4 AS no, tier, number, total FROM docs) AS d GROUP BY no, tier
    )
    UPDATE memory_lines SET known = lines.upto,
        counts = ARRAY(SELECT coalesce(m.count, memory_lines.counts[t + 1])
            FROM generate_series(0, 2) AS t
            LEFT JOIN more AS m ON m.no = lines.no AND m.tier = t ORDER BY t),
        totals = ARRAY(SELECT coalesce(m.total, memory_lines.totals[t + 1])
            FROM generate_series(0, 2) AS t
            LEFT JOIN more AS m ON m.no = lines.no AND m.tier = t ORDER BY t)
    FROM lines WHERE memory_lines.no = lines.no;
    RETURN '';
END $$;

-- The last document of _low < id <= _high that happened by then; _low: none. Times of a line never
-- go back.
CREATE FUNCTION memory_until(_low bigint, _high bigint, _time bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    _middle bigint;
BEGIN
    WHILE _low < _high LOOP
        _middle := (_low + _high + 1) / 2;
        IF (SELECT time FROM memory_docs WHERE id = _middle) <= _time THEN
            _low := _middle;
        ELSE
            _high := _middle - 1;
        END IF;
    END LOOP;
    RETURN _low;
END $$;

-- Nothing of these timelines stays, nor of what somebody has just read of them.
CREATE FUNCTION memory_forget(_names text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _no bigint;
BEGIN
    FOR _no IN INSERT INTO memory_lines AS l (name, gone, emptied)
        SELECT n, 1, now() FROM unnest(_names) AS n ORDER BY n
        ON CONFLICT (name) DO UPDATE SET gone = l.gone + 1, emptied = now(), known = 0,
            counts = '{0,0,0}', totals = '{0,0,0}' RETURNING l.no
    LOOP
        DELETE FROM memory_docs WHERE id >= _no * 4 << 32 AND id < (_no + 1) * 4 << 32;
        DELETE FROM memory_terms WHERE id >= _no * 4 << 32 AND id < (_no + 1) * 4 << 32;
        DELETE FROM memory_ends WHERE no = _no;
    END LOOP;
END $$;

-- Nothing stays at all; `_mark`, if given, must still be the one.
CREATE FUNCTION memory_empty(_mark uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE memory_marks SET mark = gen_random_uuid() WHERE _mark IS NULL OR mark = _mark;
    IF FOUND THEN
        TRUNCATE memory_lines, memory_docs, memory_terms, memory_ends;
    END IF;
END $$;

-- What is removed from the journal is found no more.
CREATE FUNCTION memory_follow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF to_regclass('memory_lines') IS NOT NULL THEN
        PERFORM memory_forget(ARRAY[replace(OLD.id::text, '-', '')]);
        DELETE FROM memory_lines
            WHERE known = 0 AND gone > 0 AND emptied < now() - interval '1 day';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER memory_follow AFTER DELETE ON timelines
    FOR EACH ROW EXECUTE FUNCTION memory_follow();

-- Vectors of texts by embedder and hash, so that no host embeds one again. Made when first needed, with
-- a type of pgvector where that can be had, else as bytes, which each host searches by itself. `mark`
-- is another one whenever something was taken out.
CREATE FUNCTION memory_make_vectors() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _type text;
BEGIN
    PERFORM pg_advisory_xact_lock(1869771877, hashtext(current_schema() || ' memory'));
    IF to_regclass('memory_vectors') IS NOT NULL AND to_regclass('memory_embedders') IS NOT NULL
        AND to_regclass('memory_vector_marks') IS NOT NULL THEN
        RETURN;
    END IF;
    DROP TABLE IF EXISTS memory_vectors, memory_embedders, memory_vector_marks;
    CREATE TABLE memory_vector_marks (mark uuid NOT NULL);
    INSERT INTO memory_vector_marks VALUES (gen_random_uuid());
    CREATE TABLE memory_embedders (
        no   bigint GENERATED ALWAYS AS IDENTITY,
        name text COLLATE "C" PRIMARY KEY,
        size int NOT NULL
    );
    BEGIN
        CREATE EXTENSION IF NOT EXISTS vector SCHEMA public;
    EXCEPTION WHEN OTHERS THEN
        NULL; -- not installed, or not allowed: memory_vectors says by its type what became of it
    END;
    SELECT format('%I.halfvec', nspname) INTO _type FROM pg_extension
        JOIN pg_namespace ON pg_namespace.oid = extnamespace
        JOIN pg_type ON typnamespace = extnamespace AND typname = 'halfvec'
        WHERE extname = 'vector' AND has_schema_privilege(extnamespace, 'USAGE');
    EXECUTE format('CREATE TABLE memory_vectors (
        embedder bigint NOT NULL, hash bytea NOT NULL, vector %s NOT NULL,
        PRIMARY KEY (embedder, hash))', coalesce(_type, 'bytea'));
    ALTER TABLE memory_vectors ALTER vector SET STORAGE MAIN; -- beside its hash, as long as it fits
END $$;

-- False, and nothing is done, when something was taken out since `_mark`; NULL when this embedder's
-- vectors have another size. What another host was faster with stays as it is.
CREATE FUNCTION memory_put_vectors(_mark uuid, _name text, _size int, _hashes bytea[],
    _texts text[], _raws bytea[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    _no bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM memory_vector_marks WHERE mark = _mark FOR SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO memory_embedders (name, size) VALUES (_name, _size) ON CONFLICT DO NOTHING;
    SELECT no INTO _no FROM memory_embedders WHERE name = _name AND size = _size;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF _raws IS NOT NULL THEN
        INSERT INTO memory_vectors SELECT _no, h, r FROM unnest(_hashes, _raws) AS v (h, r)
            ORDER BY h ON CONFLICT DO NOTHING;
    ELSE
        EXECUTE format('INSERT INTO memory_vectors SELECT $1, h, t::%s
            FROM unnest($2, $3) AS v (h, t) ORDER BY h ON CONFLICT DO NOTHING',
            (SELECT format_type(atttypid, atttypmod) FROM pg_attribute
                WHERE attrelid = 'memory_vectors'::regclass AND attname = 'vector'))
            USING _no, _hashes, _texts;
    END IF;
    RETURN true;
END $$;

-- Returns how many went: those of these texts, or, where there are none, of all embedders but one.
CREATE FUNCTION memory_drop_vectors(_hashes bytea[], _but text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    _many bigint;
BEGIN
    UPDATE memory_vector_marks SET mark = gen_random_uuid(); -- even for none: one may be on its way
    IF _hashes IS NOT NULL THEN
        DELETE FROM memory_vectors WHERE hash = ANY (_hashes);
        GET DIAGNOSTICS _many = ROW_COUNT;
        RETURN _many;
    END IF;
    DELETE FROM memory_vectors WHERE embedder IN
        (SELECT no FROM memory_embedders WHERE name IS DISTINCT FROM _but);
    GET DIAGNOSTICS _many = ROW_COUNT;
    DELETE FROM memory_embedders WHERE name IS DISTINCT FROM _but;
    RETURN _many;
END $$;
