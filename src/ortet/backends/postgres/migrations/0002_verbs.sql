-- What a catalog does, each in one statement of the client: one round trip, one transaction, nothing
-- that stays open when a client goes away. A later migration that changes what a function does drops
-- it and gives the new one another name, so that older programs are refused instead of mistaken.

CREATE FUNCTION refuse(_kind text, _detail json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'OR001', MESSAGE = _kind, DETAIL = _detail::text;
END $$;

-- The time that was given, else that of the one clock which all servers share.
CREATE FUNCTION moment(_given bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(_given, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
$$;

-- Partitions of this month and the next.
CREATE FUNCTION ahead() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _from timestamp;
    _name text;
BEGIN
    PERFORM pg_advisory_xact_lock(1869771877, hashtext(current_schema() || ' ahead'));
    FOR i IN 0..1 LOOP
        _from := date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => i);
        _name := 'events_' || to_char(_from, 'YYYYMM');
        IF to_regclass(quote_ident(_name)) IS NULL THEN
            EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING STORAGE)', _name);
            EXECUTE format(
                'ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', _name,
                _from AT TIME ZONE 'UTC', (_from + interval '1 month') AT TIME ZONE 'UTC');
        END IF;
    END LOOP;
END $$;

-- leases

-- The row stays locked, so that nobody takes the lease over while its holder's write is under way.
CREATE FUNCTION hold(_name text, _owner text, _fence bigint, _at bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leases WHERE name = _name AND owner = _owner AND fence = _fence
        AND expires > moment(_at) FOR SHARE;
    IF NOT FOUND THEN
        PERFORM refuse('lease_lost', '{}');
    END IF;
END $$;

CREATE FUNCTION claim(_name text, _owner text, _ttl bigint, _at bigint) RETURNS SETOF leases
LANGUAGE plpgsql AS $$
DECLARE
    _held leases;
    _now bigint;
    _until bigint;
BEGIN
    LOOP
        SELECT * INTO _held FROM leases WHERE name = _name FOR UPDATE;
        _now := moment(_at);
        _until := least(_now::numeric + _ttl, 9223372036854775807)::bigint;
        IF FOUND THEN
            IF _held.owner <> _owner AND _held.expires > _now THEN
                PERFORM refuse('lease_held', json_build_object(
                    'name', _name, 'owner', _held.owner, 'fence', _held.fence,
                    'expires', _held.expires, 'now', _now));
            END IF;
            RETURN QUERY UPDATE leases SET owner = _owner, expires = _until,
                fence = CASE WHEN _held.owner = _owner THEN _held.fence ELSE nextval('fences') END
                WHERE name = _name RETURNING *;
            RETURN;
        END IF;
        RETURN QUERY INSERT INTO leases VALUES (_name, _owner, nextval('fences'), _until)
            ON CONFLICT DO NOTHING RETURNING *;
        IF FOUND THEN
            RETURN;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION prolong(_name text, _owner text, _fence bigint, _ttl bigint, _at bigint)
RETURNS SETOF leases LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY UPDATE leases
        SET expires = least(moment(_at)::numeric + _ttl, 9223372036854775807)::bigint
        WHERE name = _name AND owner = _owner AND fence = _fence RETURNING *;
END $$;

-- heads and records

CREATE FUNCTION move_head(_name text, _old bytea, _new bytea, _at bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _version bigint;
    _floor bigint;
    _there bytea;
BEGIN
    IF _new IS NULL THEN
        DELETE FROM heads WHERE name = _name AND oid = _old RETURNING version INTO _version;
        IF FOUND THEN
            UPDATE floors SET value = _version WHERE "of" = 'head' AND value < _version;
            RETURN;
        END IF;
    ELSIF _old IS NULL THEN
        INSERT INTO heads VALUES
            (_name, _new, (SELECT value + 1 FROM floors WHERE "of" = 'head'), _at)
            ON CONFLICT DO NOTHING RETURNING version INTO _version;
        IF FOUND THEN
            -- it may have waited for one who deleted the head and raised the floor
            SELECT value INTO _floor FROM floors WHERE "of" = 'head';
            IF _floor >= _version THEN
                UPDATE heads SET version = _floor + 1 WHERE name = _name;
            END IF;
            RETURN;
        END IF;
    ELSE
        UPDATE heads SET oid = _new, version = version + 1, time = _at
            WHERE name = _name AND oid = _old;
        IF FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT oid INTO _there FROM heads WHERE name = _name;
    PERFORM refuse('head_moved', json_build_object('name', _name,
        'expect', encode(_old, 'hex'), 'found', encode(_there, 'hex')));
END $$;

-- The version that is there afterwards, 0 for none.
CREATE FUNCTION change_row(_kind text, _key text, _value bytea, _expect bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    _version bigint;
    _floor bigint;
BEGIN
    LOOP
        SELECT version INTO _version FROM records WHERE kind = _kind AND key = _key FOR UPDATE;
        IF _expect IS NOT NULL AND coalesce(_version, 0) <> _expect THEN
            PERFORM refuse('row_moved', json_build_object('kind', _kind, 'key', _key,
                'expect', _expect, 'found', coalesce(_version, 0)));
        END IF;
        IF _value IS NULL THEN
            DELETE FROM records WHERE kind = _kind AND key = _key;
            UPDATE floors SET value = _version WHERE "of" = 'row' AND value < _version;
            RETURN 0;
        ELSIF _version IS NOT NULL THEN
            UPDATE records SET value = _value, version = version + 1
                WHERE kind = _kind AND key = _key;
            RETURN _version + 1;
        END IF;
        INSERT INTO records VALUES
            (_kind, _key, _value, (SELECT value + 1 FROM floors WHERE "of" = 'row'))
            ON CONFLICT DO NOTHING RETURNING version INTO _version;
        IF FOUND THEN
            SELECT value INTO _floor FROM floors WHERE "of" = 'row';
            IF _floor >= _version THEN
                UPDATE records SET version = _floor + 1 WHERE kind = _kind AND key = _key;
                RETURN _floor + 1;
            END IF;
            RETURN _version;
        END IF;
    END LOOP;
END $$;

-- False: this very request was done before. A second one waits here for the end of the first.
CREATE FUNCTION once(_slot bytea, _request bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO writers AS w VALUES (_slot, _request, now())
        ON CONFLICT (slot) DO UPDATE SET request = excluded.request, time = excluded.time
        WHERE w.request < excluded.request;
    RETURN FOUND;
END $$;

CREATE FUNCTION put_row(_kind text, _key text, _value bytea, _expect bigint, _slot bytea,
    _request bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF once(_slot, _request) THEN
        RETURN change_row(_kind, _key, _value, _expect);
    END IF;
    RETURN (SELECT version FROM records WHERE kind = _kind AND key = _key);
END $$;

-- A sweep waits, after it has raised the epoch, for the end of every statement that began before.
CREATE FUNCTION in_epoch(_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _now bigint;
BEGIN
    IF _epoch IS NOT NULL THEN
        SELECT value INTO _now FROM floors WHERE "of" = 'epoch';
        IF _now <> _epoch THEN
            PERFORM refuse('swept', json_build_object('epoch', _now));
        END IF;
    END IF;
END $$;

-- events

CREATE FUNCTION add_timeline(_id uuid, _parent uuid, _point bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _last bigint;
BEGIN
    IF _parent IS NOT NULL THEN
        -- locked: it must not be dropped before we are its child
        SELECT last INTO _last FROM timelines WHERE id = _parent FOR KEY SHARE;
        IF NOT FOUND THEN
            PERFORM refuse('no_timeline', json_build_object('timeline', _parent));
        ELSIF _point < 0 OR _point > _last THEN
            PERFORM refuse('bad_fork', json_build_object('timeline', _parent, 'at', _point));
        END IF;
    END IF;
    INSERT INTO timelines VALUES (_id, _parent, _point, _point) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        PERFORM refuse('timeline_exists', json_build_object('timeline', _id));
    END IF;
END $$;

CREATE FUNCTION add_events(_line uuid, _first bigint, _heads bytea[], _salts bytea[],
    _bodies bytea[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    _last bigint;
BEGIN
    UPDATE timelines SET last = last + cardinality(_heads)
        WHERE id = _line AND (last = _first - 1 OR cardinality(_heads) = 0);
    IF NOT FOUND THEN
        SELECT last INTO _last FROM timelines WHERE id = _line;
        IF NOT FOUND THEN
            PERFORM refuse('no_timeline', json_build_object('timeline', _line));
        END IF;
        PERFORM refuse('seq_taken',
            json_build_object('timeline', _line, 'expect', _first, 'found', _last));
    END IF;
    INSERT INTO events (timeline, seq, made, head, salt, body)
        SELECT _line, _first - 1 + n, now(), h, s, b
        FROM unnest(_heads, _salts, _bodies) WITH ORDINALITY AS e (h, s, b, n);
END $$;

-- `_doubt`: the answer of the same append was lost. If its events are there, it was done.
CREATE FUNCTION append(_line uuid, _first bigint, _heads bytea[], _salts bytea[], _bodies bytea[],
    _lease text, _owner text, _fence bigint, _at bigint, _epoch bigint, _doubt boolean,
    _kinds text[], _keys text[], _values bytea[], _expects bigint[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF _doubt THEN
        PERFORM 1 FROM timelines WHERE id = _line FOR UPDATE; -- once it has ended
        IF (SELECT count(*) FROM unnest(_heads) WITH ORDINALITY AS e (h, n)
            JOIN events ON timeline = _line AND seq = _first - 1 + n AND head = h
        ) = cardinality(_heads) THEN
            RETURN;
        END IF;
    END IF;
    PERFORM in_epoch(_epoch);
    IF _lease IS NOT NULL THEN
        PERFORM hold(_lease, _owner, _fence, _at);
    END IF;
    PERFORM add_events(_line, _first, _heads, _salts, _bodies);
    FOR i IN 1..cardinality(_keys) LOOP
        PERFORM change_row(_kinds[i], _keys[i], _values[i], _expects[i]);
    END LOOP;
END $$;

CREATE FUNCTION drop_timeline(_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM timelines WHERE id = _id;
    IF EXISTS (SELECT 1 FROM timelines WHERE parent = _id) THEN
        PERFORM refuse('has_children', json_build_object('timeline', _id));
    END IF;
    DELETE FROM events WHERE timeline = _id;
END $$;

-- all of it

CREATE FUNCTION move(_slot bytea, _request bigint, _epoch bigint, _at bigint,
    _lease text, _owner text, _fence bigint,
    _claims text[], _owners text[], _ttls bigint[],
    _ids uuid[], _parents uuid[], _points bigint[],
    _lines uuid[], _firsts bigint[], _ends int[], _eheads bytea[], _salts bytea[], _bodies bytea[],
    _names text[], _olds bytea[], _news bytea[], _verb text, _actor text, _detail text,
    _kinds text[], _keys text[], _values bytea[], _expects bigint[])
RETURNS SETOF leases LANGUAGE plpgsql AS $$
DECLARE
    _now bigint;
    _from int := 1;
BEGIN
    IF NOT once(_slot, _request) THEN
        RETURN QUERY SELECT l.* FROM unnest(_claims) WITH ORDINALITY AS c (wanted, n)
            JOIN leases l ON l.name = wanted ORDER BY n;
        RETURN;
    END IF;
    PERFORM in_epoch(_epoch);
    IF _lease IS NOT NULL THEN
        PERFORM hold(_lease, _owner, _fence, _at);
    END IF;
    FOR i IN 1..cardinality(_claims) LOOP
        RETURN QUERY SELECT * FROM claim(_claims[i], _owners[i], _ttls[i], _at);
    END LOOP;
    FOR i IN 1..cardinality(_ids) LOOP
        PERFORM add_timeline(_ids[i], _parents[i], _points[i]);
    END LOOP;
    FOR i IN 1..cardinality(_lines) LOOP
        PERFORM add_events(_lines[i], _firsts[i], _eheads[_from:_ends[i]], _salts[_from:_ends[i]],
            _bodies[_from:_ends[i]]);
        _from := _ends[i] + 1;
    END LOOP;
    IF cardinality(_names) > 1 THEN -- in one order, so that two of us do not wait for each other
        PERFORM 1 FROM heads WHERE name = ANY (_names) ORDER BY name FOR UPDATE;
    END IF;
    IF cardinality(_names) > 0 THEN
        _now := moment(_at);
        FOR i IN 1..cardinality(_names) LOOP
            PERFORM move_head(_names[i], _olds[i], _news[i], _now);
        END LOOP;
        -- who reads the log of all waits until nobody is between number and commit
        PERFORM pg_advisory_xact_lock_shared(1869771877, hashtext(current_schema() || ' ops'));
        INSERT INTO ops (time, verb, name, old, new, actor, detail)
            SELECT _now, _verb, m, o, w, _actor, _detail
            FROM unnest(_names, _olds, _news) WITH ORDINALITY AS e (m, o, w, n) ORDER BY n;
    END IF;
    FOR i IN 1..cardinality(_keys) LOOP
        PERFORM change_row(_kinds[i], _keys[i], _values[i], _expects[i]);
    END LOOP;
END $$;

CREATE FUNCTION ops_of_all(_after bigint, _limit bigint) RETURNS SETOF ops LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1869771877, hashtext(current_schema() || ' ops'));
    RETURN QUERY SELECT * FROM ops WHERE seq > _after ORDER BY seq LIMIT _limit;
END $$;

CREATE FUNCTION last_op() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1869771877, hashtext(current_schema() || ' ops'));
    RETURN (SELECT coalesce(max(seq), 0) FROM ops);
END $$;

-- Give old partitions that are nearly empty back to the disk. Rows that are left in them, the last
-- events of sessions that rest, are put into the partition of this month: nothing is lost.
CREATE FUNCTION drop_old(_worth int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    _part record;
    _left bigint;
    _count int := 0;
BEGIN
    PERFORM ahead();
    FOR _part IN SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = to_regclass('events')
        AND c.relname < 'events_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMM')
        ORDER BY c.relname
    LOOP
        EXECUTE format('SELECT coalesce(sum(64 + pg_column_size(head) +
            coalesce(pg_column_size(body), 0)), 0) FROM %I', _part.name) INTO _left;
        IF _left * _worth <= _part.bytes THEN
            LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
            EXECUTE format('INSERT INTO events SELECT timeline, seq, now(), head, salt, body FROM %I',
                _part.name);
            EXECUTE format('DROP TABLE %I', _part.name);
            _count := _count + 1;
        END IF;
    END LOOP;
    RETURN _count;
END $$;
