package reports

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEveryReportHasATest: each report of the list has a test of its name here, which cites it.
func TestEveryReportHasATest(t *testing.T) {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		require.NotEqual(t, dir, filepath.Dir(dir), "no go.mod above the test")
		dir = filepath.Dir(dir)
	}
	list, err := os.ReadFile(filepath.Join(dir, "..", "shared", "cases", "field-reports.tsv"))
	if err != nil {
		t.Skipf("the list of reports is not part of the repository and was not found: %v", err)
	}
	docs := map[string]string{} // by test
	pkgs, err := parser.ParseDir(token.NewFileSet(), ".", func(f fs.FileInfo) bool { return strings.HasSuffix(f.Name(), "_test.go") }, parser.ParseComments)
	require.NoError(t, err)
	for _, pkg := range pkgs {
		for _, file := range pkg.Files {
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
					docs[f.Name.Name] = f.Doc.Text()
				}
			}
		}
	}
	id := regexp.MustCompile(`^P[0-9]{3}$`)
	n := 0
	for line := range strings.Lines(string(list)) {
		cols := strings.Split(line, "\t")
		if !id.MatchString(cols[0]) {
			continue
		}
		n++
		doc, ok := docs["Test"+cols[0]]
		if assert.True(t, ok, "no test of %s (%s)", cols[0], cols[1]) {
			assert.Contains(t, strings.Join(strings.Fields(doc), " "), cols[1], "Test%s does not cite its report", cols[0])
		}
	}
	assert.Equal(t, 80, n)
}
