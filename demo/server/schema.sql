-- Applied at every start, each statement in a transaction of its own under an advisory lock: it must be harmless when repeated. What is older
-- stays as it is, and what is newer is added below it, so that any earlier version ends up as this one.
-- Statements end with a semicolon at the end of a line, and comments hold none.

CREATE TABLE IF NOT EXISTS idempotency_keys (
  owner text COLLATE "C" NOT NULL,
  key text COLLATE "C" NOT NULL,
  fingerprint bytea NOT NULL,
  sha256 bytea,
  state text NOT NULL CHECK (state IN ('in_flight', 'completed')),
  fence uuid NOT NULL,
  leased_until timestamptz,
  response_status int,
  response_headers jsonb, -- array of [name, value], in order
  response_body bytea, -- bytes, since jsonb reorders members
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL,
  PRIMARY KEY (owner, key),
  CHECK ((state = 'in_flight') = (leased_until IS NOT NULL)),
  CHECK ((state = 'completed') = (response_body IS NOT NULL))
);

CREATE INDEX IF NOT EXISTS idempotency_keys_expires_at ON idempotency_keys (expires_at);

CREATE INDEX IF NOT EXISTS idempotency_keys_in_flight ON idempotency_keys (owner) WHERE state = 'in_flight';

-- UNIQUE (owner, idempotency_key) is what makes a second file impossible, whatever leases and clocks do.
CREATE TABLE IF NOT EXISTS media (
  id uuid PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  idempotency_key text COLLATE "C" NOT NULL,
  storage_key text NOT NULL UNIQUE,
  sha256 bytea NOT NULL,
  bytes bigint NOT NULL,
  content_type text NOT NULL,
  file_name text,
  metadata jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (owner, idempotency_key)
);

CREATE INDEX IF NOT EXISTS media_newest ON media (owner, created_at DESC);

-- Write-ahead list: an object is on it before its first byte is written, and leaves it when it is published or deleted.
CREATE TABLE IF NOT EXISTS pending_objects (
  storage_key text PRIMARY KEY,
  owner text NOT NULL,
  key text NOT NULL,
  fence uuid NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  dead_at timestamptz
);

ALTER TABLE media ADD COLUMN IF NOT EXISTS caption text;

CREATE TABLE IF NOT EXISTS albums (
  id uuid PRIMARY KEY,
  owner text COLLATE "C" NOT NULL,
  title text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX IF NOT EXISTS albums_newest ON albums (owner, created_at DESC);

CREATE TABLE IF NOT EXISTS album_media (
  album_id uuid NOT NULL REFERENCES albums ON DELETE CASCADE,
  position int NOT NULL,
  media_id uuid NOT NULL REFERENCES media ON DELETE CASCADE,
  PRIMARY KEY (album_id, position)
);
