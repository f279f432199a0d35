package webhook

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// documentedKeys returns the keys that the comment of Config.Logger lists.
func documentedKeys(t *testing.T) []string {
	t.Helper()
	src, err := os.ReadFile("config.go")
	must(t, err)
	_, list, ok := strings.Cut(string(src), "\t// Logger ")
	if !ok {
		t.Fatal("config.go has no comment that begins with \"Logger\"; it lists the keys of all log lines")
	}
	list, _, _ = strings.Cut(list, "Logger *slog.Logger")
	var keys []string
	for _, m := range regexp.MustCompile(`(?m)^\s*//\t(\w+) `).FindAllStringSubmatch(list, -1) {
		keys = append(keys, m[1])
	}
	return keys
}

// Every log call of the package uses literal keys that the comment of Config.Logger documents.
// Every documented key is in use.
func TestLogKeysAreThoseDocumented(t *testing.T) {
	documented := documentedKeys(t)
	used := make(map[string]bool)
	lines := 0
	files, err := os.ReadDir(".")
	must(t, err)
	set := token.NewFileSet()
	check := func(what token.Pos, args []ast.Expr) {
		for i := 0; i < len(args); i += 2 {
			lit, ok := args[i].(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				t.Errorf("%v: the log key is not a string literal, want one", set.Position(what))
				return
			}
			key, _ := strconv.Unquote(lit.Value)
			used[key] = true
			if !slices.Contains(documented, key) {
				t.Errorf("%v: the log key %q is not documented at Config.Logger", set.Position(what), key)
			}
		}
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, f.Name(), nil, 0)
		must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CompositeLit: // args := []any{"key", value}
				if a, ok := n.Type.(*ast.ArrayType); ok {
					if elem, ok := a.Elt.(*ast.Ident); ok && elem.Name == "any" {
						check(n.Pos(), n.Elts)
					}
				}
			case *ast.CallExpr:
				if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "append" && len(n.Args) > 2 {
					if s, ok := n.Args[0].(*ast.Ident); ok && s.Name == "args" {
						check(n.Pos(), n.Args[1:])
					}
				}
				fn, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || !slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log", "With"}, fn.Sel.Name) {
					return true
				}
				var name string
				switch x := fn.X.(type) {
				case *ast.SelectorExpr:
					name = x.Sel.Name
				case *ast.Ident:
					name = x.Name
				}
				if !strings.EqualFold(name, "logger") {
					return true
				}
				lines++
				if !n.Ellipsis.IsValid() {
					check(n.Pos(), n.Args[1:])
				}
			}
			return true
		})
	}
	if lines < 8 {
		t.Errorf("found %d log calls, want at least 8", lines)
	}
	for _, key := range documented {
		if !used[key] {
			t.Errorf("no log call has the documented key %q, want at least one", key)
		}
	}
}
