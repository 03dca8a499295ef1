package kafka

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Pack writes a data directory into a compressed tar file. Times and owners are left out, so that equal directories
// make equal files.
func Pack(dir, file string) error {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() == ".lock" || path == dir {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		h := &tar.Header{Name: filepath.ToSlash(rel), Mode: 0o755, Typeflag: tar.TypeDir, ModTime: time.Unix(0, 0)}
		if d.IsDir() {
			h.Name += "/"
			return w.WriteHeader(h)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		h.Typeflag, h.Mode, h.Size = tar.TypeReg, 0o644, int64(len(content))
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err := errors.Join(err, w.Close(), z.Close()); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

// Unpack writes the content of a packed data directory into dir. Zeros at the end of a file, which Kafka reserves in
// some, take no room.
func Unpack(file, dir string) error {
	packed, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.FromSlash(strings.TrimSuffix(h.Name, "/"))
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%s: a file named %s", file, h.Name)
		}
		path := filepath.Join(dir, name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, bytes.TrimRight(content, "\x00"), 0o644); err != nil {
			return err
		}
		if err := os.Truncate(path, int64(len(content))); err != nil {
			return err
		}
	}
}
