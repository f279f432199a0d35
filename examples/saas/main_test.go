package main_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hookferry/analytics/internal/pgtest"
)

// The shop sends the same events from a folder and from PostgreSQL.
func TestShop(t *testing.T) {
	program := filepath.Join(t.TempDir(), "saas")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, tt := range []struct {
		name string
		args func(t *testing.T) []string
	}{
		{"folder", func(*testing.T) []string { return nil }},
		{"postgres", func(t *testing.T) []string { return []string{"-postgres", pgtest.New(t, "fsync=off").URL()} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := run(t, program, append(tt.args(t), "-listen", "127.0.0.1:0"))
			for _, want := range []string{
				"order-1 of acme: an event for 1 of its URLs\n", "order-4 of initech: an event for 0 of its URLs\n",
				`acme got {"type":"order.placed",`, `"data":{"id":"order-2","buyer":"bob","total":40}}`, `"data":{"id":"order-3","buyer":"bob","total":7}}`,
			} {
				if !strings.Contains(out, want) {
					t.Errorf("the shop printed\n%s\nwant %s", out, want)
				}
			}
		})
	}
}

// run runs the shop until it serves its pages, looks at the portal of a tenant, and returns what the shop
// has printed.
func run(t *testing.T, program string, args []string) string {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		out.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "http://") {
			lookAtPortal(t, lines.Text())
			page, err := os.ReadFile("../../docs/start-product.md")
			if err != nil || !strings.Contains(string(page), "\n"+regexp.MustCompile(`:\d+/`).ReplaceAllString(lines.Text(), ":8090/")+"\n```\n") {
				t.Errorf("docs/start-product.md does not show the line %s: %v", lines.Text(), err)
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	return out.String()
}

// lookAtPortal logs in, and sees the page and the endpoint of one tenant alone.
func lookAtPortal(t *testing.T, login string) {
	t.Helper()
	jar, _ := cookiejar.New(nil)
	client := &http.Client{Jar: jar}
	defer client.CloseIdleConnections()
	get := func(url string) string {
		t.Helper()
		answer, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status + " " + string(text)
	}
	portal := strings.Split(login, "login?")[0] + "webhooks/"
	if page := get(portal); !strings.HasPrefix(page, "401 ") {
		t.Errorf("without a session: %s", page)
	}
	if page := get(login); !strings.Contains(page, "<title>Webhooks of the shop</title>") {
		t.Errorf("the portal: %s", page)
	}
	if list := get(portal + "api/v1/endpoints"); strings.Count(list, `"url":"http://127.0.0.1:`) != 1 {
		t.Errorf("the endpoints of globex are %s, want one", list)
	}
	page, err := os.ReadFile("../../docs/portal.md")
	if err != nil {
		t.Fatal(err)
	}
	order := regexp.MustCompile(`(?m)^curl .*$`).FindString(string(page))
	if !strings.Contains(string(page), "\ncd examples/saas && GOWORK=off go run . -listen localhost:8090\n") || !strings.HasSuffix(order, " localhost:8090/orders") {
		t.Fatalf("docs/portal.md does not start the shop and place an order: %q", order)
	}
	sent, err := exec.Command("sh", "-c", strings.Replace(order, "localhost:8090", strings.Split(login, "/")[2], 1)).Output()
	if err != nil || string(sent) != "an event for 1 of its URLs\n" {
		t.Errorf("an order: %q, %v", sent, err)
	}
}
