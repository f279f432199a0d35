package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
)

// TestNATSWithClientCertificates runs the server on a NATS server that has a certificate of a
// private authority and demands a client certificate. Without either, the server does not start.
func TestNATSWithClientCertificates(t *testing.T) {
	w := onSystemNetwork(t)
	receiver := w.sink()
	file := func(tls string) string {
		return fmt.Sprintf(`
sources: [{name: web, keys: [k1], destinations: [crm]}]
destinations: [{id: crm, endpoints: [{url: %q}]}]
queue: {url: "nats://${SERVER}", nats: {partitions: 1, tls: {%s}}}
`, receiver.url, tls)
	}
	env := make(map[string]string)
	s := w.prepare(file("ca: server.pem, certificate: client.pem, key: client-key.pem"), env)
	w.certificate("server", 1)
	clients := x509.NewCertPool()
	clients.AddCert(w.certificate("client", 2))
	own, err := tls.LoadX509KeyPair(s.path("server.pem"), s.path("server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := natsserver.NewServer(&natsserver.Options{
		Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
		TLSConfig:  &tls.Config{Certificates: []tls.Certificate{own}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert},
		TLSTimeout: time.Hour.Seconds(),
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Start()
	t.Cleanup(func() {
		n.Shutdown()
		n.WaitForShutdown()
	})
	if !n.ReadyForConnections(time.Hour) {
		t.Fatal("the NATS server is not ready")
	}
	env["SERVER"] = n.Addr().String()
	s.begin()
	s.await(`msg=listening`)
	if status := s.call("k1", "One"); status != 200 {
		t.Fatalf("a call got the status %d, want 200", status)
	}
	receiver.want("One")

	for name, tls := range map[string]string{
		"without a certificate": fmt.Sprintf("ca: %q", s.path("server.pem")),
		"without an authority":  fmt.Sprintf("certificate: %q, key: %q", s.path("client.pem"), s.path("client-key.pem")),
	} {
		stranger := w.prepare(file(tls), env)
		stranger.begin()
		err := <-stranger.ended
		if stranger.ended <- err; err == nil { // the cleanup reads the error, too
			t.Errorf("%s the server starts, want an error", name)
		}
	}
}
