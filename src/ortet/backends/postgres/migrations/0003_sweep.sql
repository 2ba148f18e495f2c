-- Sweeps beside writers of all hosts.

-- Every write reads `floors` when it is checked, and holds its lock on that table until it ends: who
-- gets the table alone has waited for all writes of the old epoch, and those that wait meanwhile read
-- the new one. Only the holder of the lease may, so one that was taken over stops before it deletes.
CREATE FUNCTION raise_epoch(_lease text, _owner text, _fence bigint, _at bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    _now bigint;
BEGIN
    PERFORM hold(_lease, _owner, _fence, _at);
    LOCK TABLE floors IN ACCESS EXCLUSIVE MODE;
    UPDATE floors SET value = value + 1 WHERE "of" = 'epoch' RETURNING value INTO _now;
    RETURN _now;
END $$;

-- Records name objects too. A program that does not show its epoch with them is refused.
DROP FUNCTION put_row;

CREATE FUNCTION put_row_in(_epoch bigint, _kind text, _key text, _value bytea, _expect bigint,
    _slot bytea, _request bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    IF once(_slot, _request) THEN
        PERFORM in_epoch(_epoch);
        RETURN change_row(_kind, _key, _value, _expect);
    END IF;
    RETURN (SELECT version FROM records WHERE kind = _kind AND key = _key);
END $$;
