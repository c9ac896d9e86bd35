"""The board: one local web page that shows the runs below some folders while they train. See docs/board.md."""
