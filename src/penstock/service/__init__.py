"""The data server: `serve` makes batches on one machine, `connect` reads them on others. See docs/service.md."""
