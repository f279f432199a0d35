// Command saas is a shop for other companies, its tenants, which gives them webhooks. It places
// orders, and sends an event for each to those URLs of the tenant that subscribe to it. It ends when
// all webhooks have arrived. With -listen it then serves a page where each tenant looks after its own
// webhooks, until it is interrupted.
//
//	cd examples/saas && GOWORK=off go run .
//	cd examples/saas && GOWORK=off go run . -listen localhost:8090
//	curl -b session=globex -d total=12.5 localhost:8090/orders
//	cd examples/saas && GOWORK=off go run . -postgres postgres://localhost/shop
//
// Without -postgres it keeps what has to be delivered in a folder. With it, an order and its event are
// stored in one transaction.
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hookferry/analytics/event"
	"github.com/hookferry/analytics/signature"
	"github.com/hookferry/analytics/tenants"
	"github.com/hookferry/analytics/webhook"
	"github.com/hookferry/analytics/webhook/filequeue"
	"github.com/hookferry/analytics/webhook/pgqueue"
	"github.com/hookferry/analytics/webhook/portal"
)

// thisMachine is where the tenants' receivers are. Without it, only public addresses are allowed.
var thisMachine = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

const week = 7 * 24 * time.Hour // for which tenants see what was delivered

func main() {
	database := flag.String("postgres", "", "`URL` of a database to use in place of a folder")
	listen := flag.String("listen", "", "`address` to serve the tenants' pages at, such as localhost:8090")
	flag.Parse()
	ctx := context.Background()
	s := open(ctx, *database)
	defer s.close()

	arrived := make(chan string, 10)
	s.subscribe(ctx, "acme", arrived, 0, "order.*")
	s.subscribe(ctx, "acme", arrived, 0, "invoice.*")
	s.subscribe(ctx, "globex", arrived, 2, "*") // is down for two requests
	must(s.tenants.CreateTenant(ctx, tenants.Tenant{ID: "initech"}, "setup"))

	expected := 0
	for _, o := range []Order{{"order-1", "acme", "ann", 12.5}, {"order-2", "globex", "bob", 40}, {"order-3", "globex", "bob", 7}, {"order-4", "initech", "cleo", 3}} {
		sent := s.place(ctx, o)
		fmt.Printf("%s of %s: an event for %d of its URLs\n", o.ID, o.Tenant, sent.Stored)
		expected += sent.Stored
	}
	for range expected {
		fmt.Println(<-arrived)
	}
	if *listen != "" {
		go func() {
			for {
				fmt.Println(<-arrived)
			}
		}()
		s.serve(*listen)
	}
}

// An Order is what a tenant's customer has bought.
type Order struct {
	ID     string  `json:"id"`
	Tenant string  `json:"-"`
	Buyer  string  `json:"buyer"`
	Total  float64 `json:"total"`
}

// A shop takes orders.
type shop struct {
	pool      *pgxpool.Pool // nil without a database
	store     webhook.Store
	tenants   *tenants.Directory
	forwarder *webhook.Forwarder
	folder    string
}

// open starts a shop that keeps its deliveries in a database or, without one, in a folder.
func open(ctx context.Context, database string) *shop {
	s := new(shop)
	if database == "" {
		s.folder = must(os.MkdirTemp("", "saas"))
		s.store = must(filequeue.Open(s.folder+"/webhooks", filequeue.Config{HistoryAge: week}))
	} else {
		s.pool = must(pgxpool.New(ctx, database))
		must(s.pool.Exec(ctx, "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, tenant text, buyer text, total float8)"))
		s.store = must(pgqueue.Open(ctx, s.pool, pgqueue.Config{History: week}))
	}
	s.tenants = must(tenants.New(s.store, tenants.Config{AllowAddresses: thisMachine}))
	s.forwarder = must(webhook.New(webhook.Config{
		Store:          s.store,
		Directory:      s.tenants,
		Catalogue:      catalogue,
		AllowAddresses: thisMachine,
	}))
	go s.forwarder.Run(ctx) // until close
	return s
}

// catalogue has the types of the shop's events, which tenants choose from.
var catalogue = must(event.NewCatalogue(
	event.Type{Type: "order.placed", Description: "Somebody has ordered.", Example: Order{ID: "order-1", Buyer: "ann", Total: 12.5}},
	event.Type{Type: "invoice.paid", Description: "An invoice was paid in full.", Example: map[string]any{"id": "invoice-7", "total": 12.5}},
))

// serve serves the pages of the shop until it is interrupted.
func (s *shop) serve(address string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /login", login)
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		tenant, _, err := tenantOfSession(r)
		total, wrong := strconv.ParseFloat(r.FormValue("total"), 64)
		if err != nil || tenant == "" || wrong != nil {
			http.Error(w, "an order needs a session and a total", http.StatusBadRequest)
			return
		}
		sent := s.place(r.Context(), Order{rand.Text(), tenant, "ann", total})
		fmt.Fprintf(w, "an event for %d of its URLs\n", sent.Stored)
	})
	webhooks := must(portal.Handler(portal.Config{
		Forwarder: s.forwarder,
		Tenants:   s.tenants,
		Tenant:    tenantOfSession,
		Catalogue: catalogue,
		Name:      "Webhooks of the shop",
		Schemes:   []string{"https", "http"}, // without it, https alone
	}))
	mux.Handle("/webhooks/", http.StripPrefix("/webhooks", webhooks))

	l := must(net.Listen("tcp", address))
	fmt.Printf("http://%s/login?tenant=globex\n", l.Addr())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	server.Serve(l) // until Close
}

// login checks no password: it believes the name in the request. A real shop has passwords.
func login(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: "session", Value: r.FormValue("tenant"), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
	http.Redirect(w, r, "/webhooks/", http.StatusSeeOther)
}

// tenantOfSession says whose webhooks a request may see and change, and who sends it.
func tenantOfSession(r *http.Request) (tenant, actor string, err error) {
	session, err := r.Cookie("session")
	if err != nil {
		return "", "", err
	}
	return session.Value, "admin@" + session.Value, nil
}

// place stores an order and its event. The key of the event is the buyer.
func (s *shop) place(ctx context.Context, o Order) webhook.Sent {
	placed := &event.Custom{Type: "order.placed", ID: o.ID, Key: o.Buyer, User: o.Buyer, Data: o}
	if s.pool == nil {
		// After a crash, send it again: the id is the same, so nothing is stored twice.
		return must(s.forwarder.Send(ctx, o.Tenant, placed))[0]
	}
	var sent webhook.Sent
	check(pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { // both are stored, or none
		const insert = "INSERT INTO orders VALUES ($1, $2, $3, $4)"
		if _, err := tx.Exec(ctx, insert, o.ID, o.Tenant, o.Buyer, o.Total); err != nil {
			return err
		}
		all, err := s.forwarder.SendTx(ctx, tx, o.Tenant, placed)
		if err == nil {
			sent = all[0]
		}
		return err
	}))
	return sent
}

// subscribe gives a tenant a URL for some types of events. A customer would do that on a page of the
// shop, and see the secret there once. The receiver is a program of the tenant: it verifies the
// signature, and refuses the first requests.
func (s *shop) subscribe(ctx context.Context, tenant string, arrived chan<- string, refused int, types string) {
	if _, err := s.tenants.Tenant(ctx, tenant); err != nil {
		must(s.tenants.CreateTenant(ctx, tenants.Tenant{ID: tenant}, "setup"))
	}
	verify := &signature.Handler{Scheme: signature.StandardWebhooks, Next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		if refused--; refused >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		arrived <- fmt.Sprintf("%s got %s", tenant, body)
	})}
	receiver := httptest.NewServer(verify)
	d, secret, err := s.tenants.Create(ctx, tenants.Destination{
		Tenant: tenant,
		Settings: webhook.Settings{
			Endpoints:     []webhook.Endpoint{{URL: receiver.URL}},
			Filter:        webhook.Filter{Include: []string{types}},
			MaxConcurrent: 1, // so that refused needs no lock
		},
	}, "setup")
	check(err)
	verify.Secrets = []signature.Secret{secret}
	fmt.Printf("%s takes %s\n", d.ID, types)
}

// close stops the shop. What was not delivered is delivered after the next start.
func (s *shop) close() {
	check(s.forwarder.Shutdown(context.Background()))
	check(s.store.Close())
	if s.pool != nil {
		s.pool.Close()
	}
	check(os.RemoveAll(s.folder))
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
