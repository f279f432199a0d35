package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/hookferry/analytics/audience"
	"github.com/hookferry/analytics/audience/fileroster"
	"github.com/hookferry/analytics/cmd/hookferry/internal/config"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/natsqueue"
	"github.com/hookferry/analytics/webhook/pgqueue"
)

// StorePath returns the folder of the store in a data folder.
func StorePath(data string) string { return filepath.Join(data, "store") }

// A store is a webhook.Store with the data that the server needs about it.
type store struct {
	Store   webhook.Store
	roster  audience.Roster
	release func() error          // closes, after Store.Close, the roster and the connections of both
	size    func() (int64, error) // of the store's files, in bytes; nil if there are none on this machine
	bound   int64                 // of the size, in bytes; 0 if only the disk or the database bounds the size
	where   slog.Attr             // where the store is, for the log
	ready   func() error          // why the store cannot be used now; nil if only its calls can say
}

// openStore opens the store that the settings name, in which this server is called name.
func openStore(ctx context.Context, settings *config.Settings, name string, logger *slog.Logger) (s *store, err error) {
	key := "queue.url"
	switch settings.Queue.Store() {
	case config.PostgreSQL:
		s, err = openPostgres(ctx, settings, name, logger)
	case config.JetStream:
		s, err = openNATS(ctx, &settings.Queue, name, logger)
	default:
		key = "data"
		s, err = openEmbedded(settings, logger)
	}
	if err != nil {
		return nil, &SettingError{key, err}
	}
	return s, nil
}

func (s *store) Close() error { return errors.Join(s.Store.Close(), s.release()) }

func openEmbedded(settings *config.Settings, logger *slog.Logger) (*store, error) {
	folder := StorePath(settings.Data)
	if err := os.MkdirAll(settings.Data, 0o700); err != nil {
		return nil, err
	}
	if err := filequeue.CheckFolder(settings.Data); err != nil {
		// Some provisioners of Kubernetes make volumes like that, and the server cannot change them.
		logger.Warn("other users of this machine could replace the store in the data folder; deliveries go on; see to it that only the server can write there", "error", err)
	}
	bound := int64(settings.Limits.Store)
	if bound == 0 {
		bound = defaultBound(settings.Data)
	}
	s, err := filequeue.Open(folder, filequeue.Config{
		Logger: logger, MaxBytes: bound, HistoryAge: settings.History.MaxAge, HistoryBytes: int64(settings.History.MaxBytes),
	})
	if err != nil {
		err = fmt.Errorf("%s: %w", folder, err)
		if errors.Is(err, filequeue.ErrDamaged) {
			err = fmt.Errorf("%w; 'hookferry store rescue --data %s --to FOLDER' writes what can be read to a new folder", err, settings.Data)
		}
		return nil, err
	}
	roster, err := fileroster.Open(folder)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return &store{
		Store: s, roster: roster, release: roster.Close,
		size:  func() (int64, error) { return storeSize(folder) },
		bound: bound,
		where: slog.String("data", settings.Data),
	}, nil
}

// defaultBound returns the bound of the store in a data folder for settings that have none: 0, which
// means no bound, if the free space of the disk is unknown.
func defaultBound(data string) int64 {
	free, err := diskFree(data)
	if err != nil {
		return 0
	}
	size, err := storeSize(StorePath(data))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	return boundOf(size, free)
}

// boundOf returns three quarters of the store's size and the free space, but at least the size. The
// last quarter is left for other users of the disk.
func boundOf(size, free int64) int64 { return max(size, (size+free)/4*3) }

func storeSize(folder string) (size int64, err error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since ReadDir
		}
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, nil
}

func openPostgres(ctx context.Context, settings *config.Settings, name string, logger *slog.Logger) (*store, error) {
	c := &settings.Queue
	pc, err := c.Pool("hookferry " + name)
	if err != nil { // the check accepted the URL, but the environment variables of libpq count, too
		return nil, errors.New("is not a URL of PostgreSQL")
	}
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, err
	}
	q, err := pgqueue.Open(ctx, pool, pgqueue.Config{
		Schema: c.Postgres.Schema, NoMigrate: !c.Postgres.Migrate, NoListen: c.Postgres.Pooler, Claim: c.Postgres.Claim,
		Node: name, Logger: logger, History: settings.History.MaxAge, HistoryBytes: int64(settings.History.MaxBytes),
	})
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &store{
		Store: q, roster: pgqueue.NewRoster(q), release: func() error { pool.Close(); return nil }, ready: q.Ready,
		where: slog.String("queue", fmt.Sprintf("postgres://%s:%d/%s", pc.ConnConfig.Host, pc.ConnConfig.Port, pc.ConnConfig.Database)),
	}, nil
}

func openNATS(ctx context.Context, c *config.Queue, name string, logger *slog.Logger) (*store, error) {
	hosts, err := c.Servers()
	if err != nil {
		return nil, err
	}
	options := []nats.Option{
		nats.Name("hookferry " + name), nats.MaxReconnects(-1), nats.Timeout(10 * time.Second),
		// After two pings without an answer, the driver changes to another server: in 15 s, not 6 minutes.
		nats.PingInterval(5 * time.Second),
		// All calls of the store wait while the connection takes no more bytes.
		nats.FlusherTimeout(3 * time.Second),
	}
	if c.NATS.Credentials != "" {
		options = append(options, nats.UserCredentials(c.NATS.Credentials))
	}
	if c.NATS.TLS != nil {
		options = append(options, nats.Secure(c.NATS.TLS.Config()))
	}
	nc, err := nats.Connect(c.URL.Reveal(), options...)
	if err != nil {
		return nil, err
	}
	q, err := natsqueue.Open(ctx, nc, natsqueue.Config{
		Stream: c.NATS.Stream, Replicas: c.NATS.Replicas, Partitions: c.NATS.Partitions, Claim: c.NATS.Claim,
		DedupWindow: c.NATS.DedupWindow, MaxBytes: int64(c.NATS.MaxBytes), Node: name, Logger: logger,
	})
	if err != nil {
		nc.Close()
		return nil, err
	}
	return &store{Store: q, roster: natsqueue.NewRoster(q), release: func() error { nc.Close(); return nil },
		where: slog.String("queue", strings.Join(hosts, ","))}, nil
}
